"""One number a target → a mean with an interval that knows which targets go together."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000


@dataclass(frozen=True)
class OverTargets:
    """A mean over the models of a cohort, each as target in turn.

    Attributes:
        mean: over the targets that have a value; None if none has.
        low: lower end of the 95 % bootstrap interval of the mean; None below 3 pairs.
        high: upper end.
        targets: number of targets that have a value.
    """

    mean: float | None
    low: float | None
    high: float | None
    targets: int

    def as_json(self) -> dict[str, float | int | None]:
        """Plain numbers."""
        return asdict(self)


def over_targets(values: npt.ArrayLike, seed: int = 0) -> OverTargets:
    """Mean over the targets, with a bootstrap over PAIRS.

    Models 2k and 2k + 1 share their pool: one's members are the other's non-members, so their numbers go together. The
    interval is of the training's randomness and the choice of members on THIS pool; another pool of the same kind may
    differ by more.

    Args:
        values: (n,) one number a target, NaN where it has none; n even.
        seed: of the resampling.

    Raises:
        ValueError: an odd number of targets.

    Example:
        >>> over_targets([1.0, 3.0]).mean, over_targets([1.0, 3.0]).low
        (2.0, None)
    """
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or len(numbers) % 2:
        raise ValueError(f"one number for each model of complementary pairs is needed, got the shape {numbers.shape}")
    known = int(np.isfinite(numbers).sum())
    if known == 0:
        return OverTargets(None, None, None, 0)
    pairs = numbers.reshape(-1, 2)
    pairs = pairs[np.isfinite(pairs).any(axis=1)]
    mean = float(np.nanmean(numbers))
    if len(pairs) < 3:
        return OverTargets(mean, None, None, known)
    drawn = np.random.default_rng(seed).integers(len(pairs), size=(RESAMPLES, len(pairs)))
    low, high = np.quantile(np.nanmean(pairs[drawn].reshape(RESAMPLES, -1), axis=1), [0.025, 0.975])
    return OverTargets(mean, float(low), float(high), known)
