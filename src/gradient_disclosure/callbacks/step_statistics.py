"""Averages over the audited steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradient_disclosure.scores.gnq import GnqResult


@dataclass
class StepStatistics:
    """Sums over the audited steps of what is averaged at the end.

    A step at which every gradient is zero has no relative damping; it is counted in ``zero_steps`` and left out of the
    means.
    """

    steps: int = 0
    zero_steps: int = 0
    damping: float = 0.0
    relative_damping: float = 0.0
    effective_rank: float = 0.0

    def add(self, result: GnqResult) -> None:
        """One step with at least one example."""
        if not math.isfinite(result.relative_damping):
            self.zero_steps += 1
            return
        self.steps += 1
        self.damping += result.damping
        self.relative_damping += result.relative_damping
        self.effective_rank += result.effective_rank

    def means(self) -> dict[str, float]:
        """Averages over the steps; empty before the first."""
        if not self.steps:
            return {}
        return {name: getattr(self, name) / self.steps for name in ("damping", "relative_damping", "effective_rank")}
