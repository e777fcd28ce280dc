"""How well a membership attack does, with intervals, and with no rate that the sample cannot resolve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradient_disclosure.attacks.membership.arrays import ArrayLike, Floats
from gradient_disclosure.attacks.membership.bootstrap import check_bootstrap, chunk_sizes, percentile_interval
from gradient_disclosure.attacks.membership.roc import RankedScores, rank_scores

FPR_LIMITS = (0.1, 0.01, 0.001)


@dataclass(frozen=True)
class TprAtFpr:
    """True positive rate at a bounded false positive rate; None where the sample is too small to say.

    Attributes:
        fpr_limit: the bound on the false positive rate, e.g. 0.01.
        tpr: the highest true positive rate of any threshold within the bound, in [0, 1].
        low: lower end of its bootstrap interval.
        high: upper end of its bootstrap interval.
    """

    fpr_limit: float
    tpr: float | None
    low: float | None
    high: float | None

    @property
    def key(self) -> str:
        """Name in a flat table, e.g. "tpr_at_1pct_fpr"."""
        return f"tpr_at_{self.fpr_limit * 100:g}pct_fpr"


@dataclass(frozen=True)
class MembershipMetrics:
    """Success of a membership attack.

    Attributes:
        auc: area under the ROC curve; 0.5 is guessing.
        auc_low: lower end of its bootstrap interval.
        auc_high: upper end of its bootstrap interval.
        balanced_accuracy: mean of true positive and true negative rate at the best threshold. OPTIMISTIC: the threshold
            is chosen on the same examples, so that even guessing scores a little above 0.5.
        tpr_at_fpr: one entry for each of 10, 1 and 0.1 % false positives.
    """

    auc: float
    auc_low: float
    auc_high: float
    balanced_accuracy: float
    tpr_at_fpr: tuple[TprAtFpr, ...]

    def to_flat(self) -> dict[str, float | None]:
        """Every number under one key, for a table or JSON; None where a rate is not reported.

        Returns:
            Keys auc, auc_low, auc_high, balanced_accuracy and, for each rate, e.g. tpr_at_1pct_fpr,
            tpr_at_1pct_fpr_low, tpr_at_1pct_fpr_high.

        Example:
            >>> rate = TprAtFpr(0.001, None, None, None)
            >>> list(MembershipMetrics(0.5, 0.4, 0.6, 0.52, (rate,)).to_flat())[4:]
            ['tpr_at_0.1pct_fpr', 'tpr_at_0.1pct_fpr_low', 'tpr_at_0.1pct_fpr_high']
        """
        flat: dict[str, float | None] = {
            "auc": self.auc,
            "auc_low": self.auc_low,
            "auc_high": self.auc_high,
            "balanced_accuracy": self.balanced_accuracy,
        }
        for rate in self.tpr_at_fpr:
            flat |= {rate.key: rate.tpr, f"{rate.key}_low": rate.low, f"{rate.key}_high": rate.high}
        return flat


def membership_metrics(
    scores: ArrayLike,
    membership: ArrayLike,
    *,
    bootstrap: int = 1000,
    seed: int = 0,
    confidence: float = 0.95,
) -> MembershipMetrics:
    """AUC, balanced accuracy and true positive rates at low false positive rates, with bootstrap intervals.

    True positive rates at low false positive rates are what Carlini et al. 2022 ("Membership inference attacks from
    first principles") ask for: AUC alone hides an attack that is certain about a few examples. Members and non-members
    are resampled apart, so each resample keeps their numbers. A rate at a false positive rate below 1 / (number of
    non-members) is None: not even one false positive could be allowed.

    Args:
        scores: (N,) higher for a likelier member.
        membership: (N,) bool, True for a member.
        bootstrap: number of resamples.
        seed: seed of the resampling.
        confidence: coverage of the percentile intervals.

    Returns:
        The metrics; ties in the scores are handled as ``sklearn.metrics.roc_curve`` does.

    Raises:
        AttackInputError: shapes that do not fit, NaN or infinity, no member or no non-member, or a bad bootstrap.

    Example:
        >>> import numpy as np
        >>> metrics = membership_metrics(np.arange(20.0), np.arange(20) >= 10)
        >>> metrics.auc, metrics.to_flat()["tpr_at_10pct_fpr"], metrics.to_flat()["tpr_at_1pct_fpr"]
        (1.0, 1.0, None)
    """
    check_bootstrap(bootstrap, confidence)
    ranked = rank_scores(scores, membership)
    caught, alarms = _counts_as_given(ranked)
    allowed = [_allowed(limit, len(ranked.non_member_groups)) for limit in FPR_LIMITS]
    point = _statistics(caught, alarms, allowed)[0]
    resampled = _resampled(ranked, allowed, bootstrap, np.random.default_rng(seed))
    auc_low, auc_high = percentile_interval(resampled[:, 0], confidence)
    rates = []
    for column, (limit, count) in enumerate(zip(FPR_LIMITS, allowed, strict=True), start=1):
        if count:
            low, high = percentile_interval(resampled[:, column], confidence)
            rates.append(TprAtFpr(limit, float(point[column]), low, high))
        else:
            rates.append(TprAtFpr(limit, None, None, None))
    tpr, fpr = caught[0] / caught[0, -1], alarms[0] / alarms[0, -1]
    return MembershipMetrics(float(point[0]), auc_low, auc_high, float((1 + (tpr - fpr).max()) / 2), tuple(rates))


def _allowed(limit: float, non_members: int) -> int:
    """False positives that a rate limit allows; rounding must not turn 0.01 · 700 = 7.000…1 into 6 or 8."""
    return int(np.floor(limit * non_members + 1e-9))


def _counts_as_given(ranked: RankedScores) -> tuple[Floats, Floats]:
    """(1, G + 1) members and non-members at or above each threshold."""
    return (
        _cumulative(np.bincount(ranked.member_groups, minlength=ranked.groups)[None]),
        _cumulative(np.bincount(ranked.non_member_groups, minlength=ranked.groups)[None]),
    )


def _resampled(ranked: RankedScores, allowed: list[int], resamples: int, rng: np.random.Generator) -> Floats:
    """(R, 1 + len(allowed)) the statistics on each bootstrap resample."""
    parts = []
    for size in chunk_sizes(resamples, ranked.groups + len(ranked.member_groups) + len(ranked.non_member_groups)):
        caught = _resampled_counts(ranked.member_groups, ranked.groups, size, rng)
        alarms = _resampled_counts(ranked.non_member_groups, ranked.groups, size, rng)
        parts.append(_statistics(caught, alarms, allowed))
    return np.concatenate(parts)


def _resampled_counts(group: npt.NDArray[np.int64], groups: int, size: int, rng: np.random.Generator) -> Floats:
    """(size, G + 1) cumulative counts of resamples with replacement."""
    drawn = group[rng.integers(len(group), size=(size, len(group)))]
    drawn += groups * np.arange(size)[:, None]
    return _cumulative(np.bincount(drawn.ravel(), minlength=size * groups).reshape(size, groups))


def _cumulative(counts: npt.NDArray[np.int64]) -> Floats:
    """Running sums along the thresholds, with a first column of zeros (no example flagged)."""
    return np.pad(counts, ((0, 0), (1, 0))).cumsum(1).astype(np.float64)


def _statistics(caught: Floats, alarms: Floats, allowed: list[int]) -> Floats:
    """(R, 1 + len(allowed)): the AUC and the true positive rate within each number of false positives."""
    members, non_members = caught[:, -1:], alarms[:, -1:]
    # The trapezium rule counts a tie between a member and a non-member as half.
    area = (np.diff(alarms) * (caught[:, 1:] + caught[:, :-1])).sum(1, keepdims=True) / (2 * members * non_members)
    # Both counts rise along the thresholds: the last one within the limit catches most.
    last = [(alarms <= limit).sum(1, keepdims=True) - 1 for limit in allowed]
    tprs = [np.take_along_axis(caught, index, axis=1) / members for index in last]
    return np.hstack([area, *tprs])
