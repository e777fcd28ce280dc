"""How much an example may disclose before a censor drops it: statistics and thresholds, both small and combinable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gradient_disclosure.ledger import DisclosureLedger

Statistic = Callable[[DisclosureLedger, Tensor, Tensor], Tensor]
"""(ledger before the step, ids (B,), this step's scores (B,)) → (B,) value that is held against the threshold."""


def accumulated_gnq(ledger: DisclosureLedger, ids: Tensor, scores: Tensor) -> Tensor:
    """The running total as it would be with this step in it."""
    return ledger.totals_of(ids, "gnq_total") + scores


def step_gnq(ledger: DisclosureLedger, ids: Tensor, scores: Tensor) -> Tensor:
    """This step's score alone."""
    return scores


def accumulated_bits(ledger: DisclosureLedger, ids: Tensor, scores: Tensor) -> Tensor:
    """The running, uncapped estimate of bits (Gaussian) as it would be with this step in it; needs an exposure."""
    if not ledger.has_bits:
        raise ValueError(
            "a budget in bits needs the sampling rate and a damping: give the ledger an exposure, and no inverse='pinv'"
        )
    return ledger.totals_of(ids, "gaussian") + ledger.step_bits(scores)[1]


Population = Callable[[DisclosureLedger, Tensor, Tensor], Tensor]
"""(ledger before the step, ids (B,), their values (B,)) → (examples drawn so far,) what a threshold compares with."""


def running_totals(column: str) -> Population:
    """The running values of all examples drawn so far, those of the present batch as they would be with this step."""

    def population(ledger: DisclosureLedger, ids: Tensor, values: Tensor) -> Tensor:
        rows = ledger.rows(ids)
        totals, drawn = ledger.totals(column), ledger.totals("n_drawn") > 0
        totals[rows], drawn[rows] = values, True
        return totals[drawn]

    return population


def means_per_draw(ledger: DisclosureLedger, ids: Tensor, values: Tensor) -> Tensor:
    """Mean score a draw of all examples drawn so far, and the present values of those drawn for the first time."""
    rows = ledger.rows(ids)
    totals, draws = ledger.totals("gnq_total"), ledger.totals("n_drawn")
    fresh = draws[rows] == 0
    return torch.cat([totals[draws > 0] / draws[draws > 0], values[fresh]])


STATISTICS: dict[str, tuple[Statistic, Population]] = {
    "accumulated_gnq": (accumulated_gnq, running_totals("gnq_total")),
    "step_gnq": (step_gnq, means_per_draw),
    "accumulated_bits": (accumulated_bits, running_totals("gaussian")),
}
"""Name → (statistic of an example, values of everybody that its threshold is taken from)."""


class Threshold(Protocol):
    """Turns the running values of all examples drawn so far into the largest value allowed."""

    def limit(self, running: Tensor) -> float:
        """Largest value allowed, infinity while the rule cannot tell yet; ``running`` is (examples drawn so far,)."""


@dataclass(frozen=True)
class AbsoluteThreshold:
    """A fixed budget, in the statistic's own units (GNQ, or bits).

    Example:
        >>> import torch
        >>> AbsoluteThreshold(3.0).limit(torch.tensor([]))
        3.0
    """

    value: float

    def limit(self, running: Tensor) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True)
class MedianMultiple:
    """``multiple`` times the median of what the examples drawn so far have disclosed: free of scale and of λ's units.

    Attributes:
        multiple: how many times the median member's disclosure is allowed.
        minimum_drawn: number of examples that must have been drawn before the median means something.

    Example:
        >>> import torch
        >>> MedianMultiple(10.0, minimum_drawn=3).limit(torch.tensor([1.0, 2.0, 50.0]))
        20.0
    """

    multiple: float
    minimum_drawn: int = 50

    def limit(self, running: Tensor) -> float:
        """``multiple`` times the median, infinity before ``minimum_drawn`` examples were drawn."""
        if running.numel() < max(1, self.minimum_drawn):
            return float("inf")
        return self.multiple * float(torch.quantile(running, 0.5))


@dataclass(frozen=True)
class QuantileThreshold:
    """The ``1 − fraction`` quantile of what the examples drawn so far have disclosed.

    With running totals the examples dropped keep theirs, so the share of dropped members grows beyond ``fraction`` as
    the others' totals catch up; ``max_fraction`` of the censor bounds it.

    Example:
        >>> import torch
        >>> QuantileThreshold(0.5, minimum_drawn=3).limit(torch.tensor([1.0, 2.0, 50.0]))
        2.0
    """

    fraction: float
    minimum_drawn: int = 50

    def limit(self, running: Tensor) -> float:
        """The quantile, infinity before ``minimum_drawn`` examples were drawn."""
        if running.numel() < max(1, self.minimum_drawn):
            return float("inf")
        return float(torch.quantile(running, 1.0 - self.fraction))
