from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import roc_points

scored = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40).filter(
    lambda pairs: len({member for _, member in pairs}) == 2
)


@settings(deadline=None)
@given(scored)
def test_points_are_scikit_learns_with_and_without_ties(pairs: list[tuple[int, bool]]) -> None:
    scores, member = np.array([float(s) for s, _ in pairs]), np.array([m for _, m in pairs])
    fpr, tpr = roc_points(scores, member)
    expected_fpr, expected_tpr, _ = roc_curve(member, scores, drop_intermediate=False)
    np.testing.assert_allclose(fpr, expected_fpr)
    np.testing.assert_allclose(tpr, expected_tpr)


@pytest.mark.parametrize("member", [[True, True], [False, False]])
def test_members_and_non_members_are_both_needed(member: list[bool]) -> None:
    with pytest.raises(AttackInputError, match="needs members AND non-members"):
        roc_points(np.array([0.0, 1.0]), np.array(member))


def test_nan_scores_are_named() -> None:
    with pytest.raises(AttackInputError, match=r"scores holds NaN or infinity at index \[1\]"):
        roc_points(np.array([0.0, np.nan]), np.array([True, False]))
