"""The online censor: an example whose running disclosure would pass its budget contributes no gradient from then on.

Data-dependent, hence without any formal guarantee: whether an example is dropped depends on the other examples'
gradients, so no accountant's ε exists for it, alone or on top of DP-SGD. What was disclosed before the drop stays
disclosed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from gradient_disclosure.defenses.budget import STATISTICS, MedianMultiple, Threshold
from gradient_disclosure.errors import CensorLimitError
from gradient_disclosure.ledger import DisclosureLedger
from gradient_disclosure.scores.gnq import GnqResult

Score = Callable[[Tensor], GnqResult]
"""(K,) positions in the batch → scores of these examples among themselves."""


@dataclass(frozen=True)
class CensorRule:
    """What is measured, how much of it is allowed, and how many members may be dropped at most.

    Attributes:
        statistic: a key of ``STATISTICS``.
        threshold: the budget.
        max_fraction: the run stops with a message rather than drop more than this fraction of the members.

    Example:
        >>> CensorRule().statistic
        'accumulated_gnq'
    """

    statistic: str = "accumulated_gnq"
    threshold: Threshold = field(default_factory=lambda: MedianMultiple(30.0))
    max_fraction: float = 0.5

    def __post_init__(self) -> None:
        if self.statistic not in STATISTICS:
            raise ValueError(f"unknown statistic {self.statistic!r}; known: {', '.join(STATISTICS)}")
        if not 0.0 < self.max_fraction <= 1.0:
            raise ValueError(f"max_fraction must lie in (0, 1], got {self.max_fraction}")

    def over_budget(self, ledger: DisclosureLedger, ids: Tensor, scores: Tensor) -> Tensor:
        """(B,) bool: examples that would pass the budget if this step's scores were added."""
        statistic, population = STATISTICS[self.statistic]
        value = statistic(ledger, ids, scores.cpu())
        return value > self.threshold.limit(population(ledger, ids, value))


@dataclass(frozen=True)
class Decision:
    """What a censor does with one batch.

    Attributes:
        kept: (K,) positions whose gradients are released.
        dropped: (D,) positions dropped at this step for the first time.
        result: scores of the kept examples among themselves, which is what the released update discloses.
    """

    kept: Tensor
    dropped: Tensor
    result: GnqResult


class Censor(Protocol):
    """Decides which examples of a batch contribute; may keep state between steps."""

    rule: CensorRule

    def decide(self, ledger: DisclosureLedger, ids: Tensor, active: Tensor, score: Score) -> Decision:
        """Decide for one batch; ``active`` (A,) are the positions of examples not censored earlier."""

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers only."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""


class GnqCensor:
    """Drops the examples that would pass the budget.

    Dropping raises the scores of those that stay (nothing hides behind an outlier), so they are scored again among
    themselves until none passes: at the end no contributing example's running value is above the budget of that moment.

    Args:
        rule: statistic, threshold and limit.
    """

    def __init__(self, rule: CensorRule | None = None) -> None:
        self.rule = rule if rule is not None else CensorRule()

    def decide(self, ledger: DisclosureLedger, ids: Tensor, active: Tensor, score: Score) -> Decision:
        """Score the active examples, drop, score again, until all that remain are within the budget."""
        kept = active
        while True:
            result = score(kept)
            over = self.rule.over_budget(ledger, ids[kept], result.scores)
            if not bool(over.any()):
                break
            kept = kept[~over]
        return Decision(kept, active[~torch.isin(active, kept)], result)

    def state_dict(self) -> dict[str, Any]:
        """No state of its own: totals and censored examples live in the ledger."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class RandomCensor:
    """The control: the same audit and rule, but each time the rule would drop k examples, k RANDOM active ones go.

    The rule counts each example it would drop once, as the real censor does.

    Args:
        rule: the same as the censor's.
        seed: of the random choice.
    """

    def __init__(self, rule: CensorRule | None = None, seed: int = 0) -> None:
        self.rule = rule if rule is not None else CensorRule()
        self._generator = torch.Generator().manual_seed(seed)
        self._flagged: set[int] = set()

    def decide(self, ledger: DisclosureLedger, ids: Tensor, active: Tensor, score: Score) -> Decision:
        """Count what the rule would drop and drop as many at random."""
        would_drop = ids[GnqCensor(self.rule).decide(ledger, ids, active, score).dropped]
        fresh = {number for number in would_drop.tolist() if number not in self._flagged}
        if not fresh:
            return Decision(active, active[:0], score(active))
        self._flagged |= fresh
        order = torch.randperm(active.numel(), generator=self._generator)
        kept = active[order[len(fresh) :].sort().values]
        dropped = active[order[: len(fresh)].sort().values]
        return Decision(kept, dropped, score(kept))

    def state_dict(self) -> dict[str, Any]:
        """The generator's state and the examples the rule has counted."""
        return {"generator": self._generator.get_state(), "flagged": sorted(self._flagged)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self._generator.set_state(state["generator"])
        self._flagged = set(state["flagged"])


def refuse_beyond_limit(censored: int, members: int, rule: CensorRule) -> None:
    """Stop if more members are censored than the rule allows.

    Raises:
        CensorLimitError: naming the numbers and what to change.
    """
    if censored > rule.max_fraction * members:
        raise CensorLimitError(
            f"the censor would have dropped {censored} of {members} members, more than max_fraction = "
            f"{rule.max_fraction:.0%}. Raise the threshold (its budget is too small for this training) or "
            "max_fraction."
        )
