"""What a way to the Gram matrix is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from experiments.benchmarks.workload import Workload
from gradient_disclosure.errors import DisclosureError

Observe = Callable[[], Tensor | None]
"""Forward, backward, the Gram matrix (B, B) of the examples' own losses; leaves the batch's gradient in ``.grad``."""


class CannotRunError(DisclosureError):
    """A way does not give the Gram matrix of this model; the message is the reason."""


def _nothing(workload: Workload) -> int:
    return 0


@dataclass(frozen=True)
class Way:
    """A way to the Gram matrix of one training step.

    Attributes:
        name: as given to ``--ways``.
        title: for the reader of the table.
        exact: whether it gives the inner products over all parameters; None for a plain step, which gives none.
        session: sets up what lasts longer than a step (not timed) and gives the part of the step up to the optimizer.
        extra_bytes: what it must hold beside a plain step, at least.
    """

    name: str
    title: str
    exact: bool | None
    session: Callable[[Workload], AbstractContextManager[Observe]]
    extra_bytes: Callable[[Workload], int] = _nothing
