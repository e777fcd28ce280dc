"""Percentile intervals from resampled statistics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from gradient_disclosure.attacks.errors import AttackInputError

# Numbers held at once: 32 MB of float64.
_CHUNK_ELEMENTS = 4_000_000


def check_bootstrap(bootstrap: int, confidence: float) -> None:
    """Refuses a number of resamples or a confidence from which no interval follows.

    Args:
        bootstrap: number of resamples, at least 1.
        confidence: coverage, strictly between 0 and 1.

    Raises:
        AttackInputError: either is out of range.

    Example:
        >>> check_bootstrap(1000, 0.95)
    """
    if bootstrap < 1:
        raise AttackInputError(f"bootstrap must be at least 1 resample, not {bootstrap}.")
    if not 0 < confidence < 1:
        raise AttackInputError(f"confidence must lie between 0 and 1, not {confidence}.")


def chunk_sizes(resamples: int, width: int) -> Iterator[int]:
    """Splits the resamples into parts that fit in memory.

    Args:
        resamples: how many there are in all.
        width: numbers that one resample takes.

    Yields:
        Sizes that sum to ``resamples``.

    Example:
        >>> list(chunk_sizes(5, width=2_000_000))
        [2, 2, 1]
    """
    size = max(1, _CHUNK_ELEMENTS // max(width, 1))
    for start in range(0, resamples, size):
        yield min(size, resamples - start)


def percentile_interval(statistics: npt.NDArray[Any], confidence: float) -> tuple[float, float]:
    """Central interval of bootstrap statistics (Efron 1979); NaN entries (undefined on that resample) are left out.

    Args:
        statistics: (R,) the statistic on each resample.
        confidence: coverage, e.g. 0.95.

    Returns:
        Lower and upper end.

    Example:
        >>> percentile_interval(np.arange(101.0), 0.5)
        (25.0, 75.0)
    """
    tail = (1 - confidence) / 2
    low, high = np.nanquantile(statistics, [tail, 1 - tail])
    return float(low), float(high)
