"""Averages over the audited steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gradient_disclosure.scores.gnq import GnqResult


@dataclass
class StepStatistics:
    """Sums over the audited steps of what is averaged at the end.

    A step at which every gradient is zero has no relative damping; it is counted in ``zero_steps`` and left out of the
    means. ``inside_span`` is kept by pseudo-inverse only: mean part of the squared norms that the scores see.
    """

    steps: int = 0
    zero_steps: int = 0
    damping: float = 0.0
    relative_damping: float = 0.0
    effective_rank: float = 0.0
    inside_span: float | None = None

    def add(self, result: GnqResult) -> None:
        """One step with at least one example."""
        if not math.isfinite(result.relative_damping):
            self.zero_steps += 1
            return
        self.steps += 1
        self.damping += result.damping
        self.relative_damping += result.relative_damping
        self.effective_rank += result.effective_rank
        if result.inside_span is not None:
            self.inside_span = (self.inside_span or 0.0) + float(result.inside_span.mean())

    def means(self) -> dict[str, float]:
        """Averages over the steps; empty before the first."""
        if not self.steps:
            return {}
        names = ("damping", "relative_damping", "effective_rank", "inside_span")
        return {name: getattr(self, name) / self.steps for name in names if getattr(self, name) is not None}


def logged_together(results: Sequence[GnqResult]) -> dict[str, float]:
    """What is logged of examples scored in several groups: means of the groups' values, extremes of extremes."""
    each = [logged_values(result) for result in results]
    together = {"_max": max, "_min": min}
    return {name: together.get(name[-4:], statistics.fmean)([values[name] for values in each]) for name in each[0]}


def logged_values(result: GnqResult) -> dict[str, float]:
    """What is logged of one step with at least one example."""
    values = {
        "disclosure/gnq_mean": float(result.scores.mean()),
        "disclosure/gnq_max": float(result.scores.max()),
        "disclosure/squared_norm_mean": float(result.squared_norms.mean()),
        "disclosure/damping": result.damping,
        "disclosure/damping_relative": result.relative_damping,
        "disclosure/effective_rank": result.effective_rank,
    }
    if result.inside_span is not None:
        values["disclosure/inside_span_mean"] = float(result.inside_span.mean())
        values["disclosure/inside_span_min"] = float(result.inside_span.min())
    return values
