from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import spearman_with_interval


@settings(deadline=None)
@given(
    arrays(np.float64, 12, elements=st.integers(0, 5).map(float)),
    arrays(np.float64, 12, elements=st.integers(0, 5).map(float)),
)
def test_rho_is_scipys(x: np.ndarray, y: np.ndarray) -> None:
    rho, low, high = spearman_with_interval(x, y, bootstrap=5)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        assert (rho, low, high) == (None, None, None)
    else:
        assert rho == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)


def test_the_interval_covers_the_true_correlation() -> None:
    rng = np.random.default_rng(0)
    pearson, covered = 0.6, []
    truth = 6 / np.pi * np.arcsin(pearson / 2)  # Spearman's rho of a bivariate normal
    for seed in range(200):
        x, noise = rng.normal(size=(2, 100))
        y = pearson * x + np.sqrt(1 - pearson**2) * noise
        _, low, high = spearman_with_interval(x, y, bootstrap=300, seed=seed)
        assert low is not None
        assert high is not None
        covered.append(low <= truth <= high)
    # 3 binomial standard errors below 95 % is 90.4 %; the percentile interval of a correlation is a little narrow.
    assert np.mean(covered) >= 0.9
    assert np.mean(covered) < 1.0


def test_opposite_order_is_minus_one_with_its_interval() -> None:
    x = np.arange(10.0)
    assert spearman_with_interval(x, -(x**3)) == (-1.0, -1.0, -1.0)


def test_constant_resamples_are_left_out() -> None:
    pair = np.array([0.0, 1.0])
    intervals = {spearman_with_interval(pair, pair, bootstrap=1, seed=seed) for seed in range(20)}
    assert intervals == {(1.0, None, None), (1.0, 1.0, 1.0)}


def test_bad_input_is_refused() -> None:
    with pytest.raises(AttackInputError, match="same examples"):
        spearman_with_interval(np.zeros(3), np.zeros(2))
    with pytest.raises(AttackInputError, match="same examples"):
        spearman_with_interval(np.zeros(1), np.zeros(1))
    with pytest.raises(AttackInputError, match=r"y holds NaN or infinity at index \[2\]"):
        spearman_with_interval(np.arange(3.0), np.array([1.0, 2.0, np.nan]))
