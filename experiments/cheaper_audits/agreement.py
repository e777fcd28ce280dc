"""Do two audits rank the same examples in the same order?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

RESAMPLES = 1000
TOP = 0.1


@dataclass(frozen=True)
class Pairs:
    """Scores of the same members by the full audit and by another, each (n,)."""

    full: np.ndarray
    other: np.ndarray

    def scored(self) -> Pairs:
        """Without the members that the other audit has no score for."""
        kept = ~np.isnan(self.other)
        return Pairs(self.full[kept], self.other[kept])


def spearman(pairs: Pairs) -> float:
    """Spearman's rank correlation; ties take mean ranks.

    Example:
        >>> round(spearman(Pairs(np.arange(4.0), np.array([1.0, 4.0, 9.0, 16.0]))), 12)
        1.0
    """
    return float(_correlations(pairs.full[None], pairs.other[None])[0])


def top_overlap(pairs: Pairs, fraction: float = TOP) -> float:
    """Share of the full audit's top members that are at the top of the other's, too; ``fraction`` is chance.

    Example:
        >>> top_overlap(Pairs(np.arange(10.0), np.arange(10.0)[::-1]), 0.2)
        0.0
    """
    count = round(fraction * len(pairs.full))
    if count == 0:
        return float("nan")
    first, second = (set(np.argsort(values)[-count:].tolist()) for values in (pairs.full, pairs.other))
    return len(first & second) / count


def over_seeds(pairs: Sequence[Pairs], seed: int = 0) -> dict[str, Any]:
    """Both figures of each seed and their means, with a 95 % bootstrap interval of the mean correlation.

    Args:
        pairs: one a seed.
        seed: of the resampling; members are resampled within each seed, so the interval says how sure the mean over
            THESE trainings is; ``spearman_per_seed`` says how much trainings differ.

    Example:
        >>> found = over_seeds([Pairs(np.arange(50.0), np.arange(50.0))])
        >>> found["spearman"], found["top_10pct_overlap"]
        (1.0, 1.0)

    Returns:
        Numbers by name; None where a seed leaves too little to rank (a training with no audited step).
    """
    scored = [each.scored() for each in pairs]
    rng = np.random.default_rng(seed)
    draws = []
    for each in scored:
        rows = rng.integers(max(1, len(each.full)), size=(RESAMPLES, len(each.full)))
        draws.append(_correlations(each.full[rows], each.other[rows]))
    low, high = np.nanquantile(np.mean(draws, axis=0), [0.025, 0.975])
    rho, overlap = [spearman(each) for each in scored], [top_overlap(each) for each in scored]
    return {
        "spearman": _rounded(np.mean(rho)),
        "spearman_low": _rounded(low),
        "spearman_high": _rounded(high),
        "spearman_per_seed": [_rounded(value) for value in rho],
        "top_10pct_overlap": _rounded(np.mean(overlap)),
        "top_10pct_overlap_per_seed": [_rounded(value) for value in overlap],
        "unscored_fraction": _rounded(np.mean([np.isnan(each.other).mean() for each in pairs])),
    }


def _rounded(value: float | np.floating[Any]) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None


def _correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(R,) Spearman correlation of each pair of rows of (R, n); NaN where it is not defined."""
    if x.shape[1] < 2:
        return np.full(len(x), np.nan)
    a, b = (ranks - ranks.mean(axis=1, keepdims=True) for ranks in (rankdata(x, axis=1), rankdata(y, axis=1)))
    scale = np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
    correlations = np.full(len(scale), np.nan)
    np.divide((a * b).sum(axis=1), scale, out=correlations, where=scale > 0)
    return correlations
