"""Operating points of a membership attack."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership.arrays import ArrayLike, Floats, as_float64, as_membership


@dataclass(frozen=True)
class RankedScores:
    """Scores reduced to what a ROC curve depends on: which threshold group each example falls in.

    Attributes:
        groups: number of distinct scores, G; group 0 holds the highest.
        member_groups: (P,) int64, the group of each member.
        non_member_groups: (Q,) int64, the group of each non-member.
    """

    groups: int
    member_groups: npt.NDArray[np.int64]
    non_member_groups: npt.NDArray[np.int64]


def rank_scores(scores: ArrayLike, membership: ArrayLike) -> RankedScores:
    """Groups tied scores, highest first, and splits them by membership.

    Args:
        scores: (N,) higher for a likelier member.
        membership: (N,) bool.

    Returns:
        The ranking; it does not change under a monotone change of the scores.

    Raises:
        AttackInputError: shapes that do not fit, NaN or infinity, or no member or no non-member.

    Example:
        >>> rank_scores(np.array([3.0, 1.0, 3.0]), np.array([True, False, False])).non_member_groups.tolist()
        [1, 0]
    """
    values = as_float64(scores, "scores", ndim=1)
    member = as_membership(membership, "membership", tuple(values.shape)).numpy()
    if member.all() or not member.any():
        raise AttackInputError(
            f"{int(member.sum())} of {len(member)} examples are members: an attack needs members AND non-members."
        )
    distinct, group = np.unique(-values.numpy(), return_inverse=True)
    return RankedScores(len(distinct), group[member], group[~member])


def roc_points(scores: ArrayLike, membership: ArrayLike) -> tuple[Floats, Floats]:
    """ROC curve of a membership attack: every threshold, tied scores together.

    The same points as ``sklearn.metrics.roc_curve(membership, scores, drop_intermediate=False)``.

    Args:
        scores: (N,) higher for a likelier member.
        membership: (N,) bool, True for a member.

    Returns:
        False and true positive rates, each (G + 1,) float64 for G distinct scores, both rising from 0 to 1.

    Raises:
        AttackInputError: shapes that do not fit, NaN or infinity, or no member or no non-member.

    Example:
        >>> fpr, tpr = roc_points(np.array([3.0, 2.0, 1.0]), np.array([True, False, True]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 1.0, 1.0], [0.0, 0.5, 0.5, 1.0])
    """
    ranked = rank_scores(scores, membership)
    return _rates(ranked.non_member_groups, ranked.groups), _rates(ranked.member_groups, ranked.groups)


def _rates(group: npt.NDArray[np.int64], groups: int) -> Floats:
    """(G + 1,) share of the examples at or above each threshold, starting from none."""
    counts = np.bincount(group, minlength=groups)
    rates: Floats = np.concatenate([[0], counts.cumsum()]) / len(group)
    return rates
