"""Patterns of names that a user gives: parameters to leave out, modules that take time first."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from gradient_disclosure.errors import DisclosureError, UnsupportedLayerError
from gradient_disclosure.gram.batch_axis import time_first_layers


def is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Whether a parameter of this name is left out.

    Example:
        >>> is_excluded("body.2.bias", ["body.2.*"])
        True
    """
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def refuse_idle_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    """A pattern that matches nothing is a typo, and what it was meant to leave out would go unnoticed."""
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if idle:
        raise DisclosureError(
            f"exclude={idle} matches no parameter. Patterns are of parameter names, e.g. 'body.2.*' for all of "
            f"layer 'body.2'; the names here begin with {list(names[:3])}."
        )


def time_first_names(module: nn.Module, patterns: Sequence[str]) -> set[str]:
    """Names of the modules that take (time, batch, ...): those known to, and those that match a pattern.

    Raises:
        DisclosureError: a pattern that matches no module.
    """
    known = time_first_layers(module)
    if not patterns:
        return known
    names = [name for name, _ in module.named_modules()]
    idle = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if idle:
        raise DisclosureError(f"time_first={idle} matches no module; the names here begin with {names[:3]}.")
    return known | {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def refuse_complex(named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Raise :class:`UnsupportedLayerError` for complex parameters."""
    found = [name for name, parameter in named if parameter.requires_grad and parameter.is_complex()]
    if found:
        raise UnsupportedLayerError(
            f"{', '.join(found)}: per-example gradients of complex parameters are not computed. Freeze them, or hold "
            "real and imaginary part as two real parameters."
        )
