"""The targets of issue 4, and whether they are met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

SHORT_STEP = 0.050
"""Seconds: for plain steps shorter than this, milliseconds are given and no target applies."""
LARGEST_PEAK = 1.10
"""Largest ratio of peak memory for the project's own ways."""
OURS = ("untouched", "untouched_float64", "reuse")


@dataclass(frozen=True)
class Verdict:
    """A target and whether it is met.

    Attributes:
        target: largest ratio allowed.
        value: ratio measured.
    """

    target: float
    value: float

    @property
    def met(self) -> bool:
        """Whether the median is within the target."""
        return self.value <= self.target

    def __str__(self) -> str:
        return f"≤ {self.target:.2f} {'met' if self.met else 'NOT met'}"


def is_short(model: Mapping[str, Any]) -> bool:
    """Whether the plain step is too short for the targets."""
    return bool(model["plain"]["seconds"]["median"] < SHORT_STEP)


def time_verdict(model: Mapping[str, Any], way: str) -> Verdict | None:
    """Whether a way's step is short enough; None where no target applies."""
    target = model.get("time_targets", {}).get(way)
    ratio = model["ways"][way].get("ratio")
    if target is None or ratio is None or is_short(model):
        return None
    return Verdict(target, ratio["median"])


def memory_verdict(model: Mapping[str, Any], way: str) -> Verdict | None:
    """Whether a way's peak memory is low enough; None where no target applies."""
    peak = model["ways"][way].get("peak_ratio")
    if way not in OURS or peak is None or is_short(model):
        return None
    return Verdict(LARGEST_PEAK, peak)


def opacus_verdict(model: Mapping[str, Any], way: str) -> Verdict | None:
    """Whether a way is no slower than Opacus hooks on the same model; the target is Opacus's own ratio."""
    opacus = model["ways"].get("opacus", {}).get("ratio")
    ratio = model["ways"][way].get("ratio")
    if way not in OURS or opacus is None or ratio is None or is_short(model):
        return None
    return Verdict(opacus["median"], ratio["median"])
