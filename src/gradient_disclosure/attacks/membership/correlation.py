"""Does a per-example score rank the examples as an attack does?"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership.arrays import ArrayLike, Floats, as_float64
from gradient_disclosure.attacks.membership.bootstrap import check_bootstrap, chunk_sizes, percentile_interval


def spearman_with_interval(
    x: ArrayLike,
    y: ArrayLike,
    *,
    confidence: float = 0.95,
    bootstrap: int = 1000,
    seed: int = 0,
) -> tuple[float | None, float | None, float | None]:
    """Spearman's rank correlation with a percentile bootstrap interval (pairs are resampled; ties take mean ranks).

    Args:
        x: (N,) one score, e.g. GNQ of each example.
        y: (N,) another score of the same examples, e.g. LiRA's.
        confidence: coverage of the interval.
        bootstrap: number of resamples.
        seed: seed of the resampling.

    Returns:
        (rho, low, high), each in [-1, 1]; (None, None, None) where x or y is constant, because the correlation is not
        defined then. Resamples that happen to be constant are left out of the interval.

    Raises:
        AttackInputError: different lengths, fewer than 2 examples, NaN or infinity, or a bad bootstrap setting.

    Example:
        >>> spearman_with_interval(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 4.0, 9.0, 16.0]))[0]
        1.0
        >>> spearman_with_interval(np.ones(3), np.arange(3.0))
        (None, None, None)
    """
    check_bootstrap(bootstrap, confidence)
    first, second = as_float64(x, "x", ndim=1).numpy(), as_float64(y, "y", ndim=1).numpy()
    if len(first) != len(second) or len(first) < 2:
        raise AttackInputError(
            f"x and y must hold the same examples, at least 2; their lengths are {len(first)} and {len(second)}."
        )
    rho = _row_correlations(first[None], second[None])[0]
    if np.isnan(rho):
        return None, None, None
    rng = np.random.default_rng(seed)
    parts = []
    for size in chunk_sizes(bootstrap, 4 * len(first)):
        drawn = rng.integers(len(first), size=(size, len(first)))
        parts.append(_row_correlations(first[drawn], second[drawn]))
    resampled = np.concatenate(parts)
    if np.isnan(resampled).all():
        return float(rho), None, None
    return float(rho), *percentile_interval(resampled, confidence)


def _row_correlations(x: Floats, y: Floats) -> Floats:
    """(R,) Spearman correlation of each pair of rows of (R, N); NaN where a row is constant."""
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (rankdata(x, axis=1), rankdata(y, axis=1)))
    scale = np.sqrt((a * a).sum(1) * (b * b).sum(1))
    products: Floats = (a * b).sum(1)
    # A correlation is at most 1; the last digit of the quotient may not know it.
    undefined = np.full_like(products, np.nan)
    correlations: Floats = np.clip(np.divide(products, scale, out=undefined, where=scale > 0), -1.0, 1.0)
    return correlations
