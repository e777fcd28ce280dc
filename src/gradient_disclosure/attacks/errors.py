"""The error of an attack that was handed something it cannot work on."""

from __future__ import annotations

from gradient_disclosure.errors import DisclosureError


class AttackInputError(DisclosureError):
    """Signals, memberships, gradients or images are not what an attack needs; the message says which and why."""
