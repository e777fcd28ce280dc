from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import balanced_accuracy_score, roc_auc_score, roc_curve

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import MembershipMetrics, membership_metrics

from .test_roc import scored


def normal_scores(members: int, non_members: int, gap: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    member = rng.permutation(members + non_members) < members
    return rng.normal(size=len(member)) + gap * member, member


@settings(max_examples=40, deadline=None)
@given(scored)
def test_auc_and_balanced_accuracy_are_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    scores, member = np.array([float(s) for s, _ in pairs]), np.array([m for _, m in pairs])
    metrics = membership_metrics(scores, member, bootstrap=2)
    assert metrics.auc == pytest.approx(roc_auc_score(member, scores))
    thresholds = [-np.inf, *scores, np.inf]
    best = max(balanced_accuracy_score(member, scores >= threshold) for threshold in thresholds)
    assert metrics.balanced_accuracy == pytest.approx(best)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("non_members", [700, 1000, 1429])
def test_tpr_is_the_best_point_of_scikit_learns_curve_within_the_limit(ties: bool, non_members: int) -> None:
    scores, member = normal_scores(500, non_members, gap=1.0, seed=0)
    scores = np.round(scores, 1) if ties else scores
    flat = membership_metrics(scores, member, bootstrap=2).to_flat()
    fpr, tpr, _ = roc_curve(member, scores, drop_intermediate=False)
    for key, limit in (("tpr_at_10pct_fpr", 0.1), ("tpr_at_1pct_fpr", 0.01), ("tpr_at_0.1pct_fpr", 0.001)):
        expected = tpr[fpr <= limit + 1e-12].max() if limit * non_members >= 1 else None
        assert flat[key] == (None if expected is None else pytest.approx(expected)), key


def test_a_rate_that_the_sample_cannot_resolve_is_not_reported() -> None:
    scores, member = normal_scores(50, 99, gap=5.0, seed=0)
    flat = membership_metrics(scores, member, bootstrap=20).to_flat()
    assert flat["tpr_at_10pct_fpr"] is not None
    for key in ("tpr_at_1pct_fpr", "tpr_at_0.1pct_fpr"):
        assert flat[key] is flat[f"{key}_low"] is flat[f"{key}_high"] is None
    scores, member = normal_scores(50, 100, gap=5.0, seed=0)
    assert membership_metrics(scores, member, bootstrap=20).to_flat()["tpr_at_1pct_fpr"] is not None


def test_flat_keys() -> None:
    flat = membership_metrics(*normal_scores(10, 10, gap=0.0, seed=0), bootstrap=5).to_flat()
    rates = ["tpr_at_10pct_fpr", "tpr_at_1pct_fpr", "tpr_at_0.1pct_fpr"]
    expected = ["auc", "auc_low", "auc_high", "balanced_accuracy"]
    assert list(flat) == expected + [rate + end for rate in rates for end in ("", "_low", "_high")]


def test_bootstrap_interval_equals_a_plain_loop_over_resamples() -> None:
    scores, member = normal_scores(120, 80, gap=0.7, seed=3)
    scores = np.round(scores, 1)
    rng = np.random.default_rng(11)
    aucs, tprs = [], []
    for _ in range(600):
        drawn = np.concatenate([rng.choice(np.flatnonzero(member == side), (member == side).sum()) for side in (1, 0)])
        aucs.append(roc_auc_score(member[drawn], scores[drawn]))
        fpr, tpr, _ = roc_curve(member[drawn], scores[drawn], drop_intermediate=False)
        tprs.append(tpr[fpr <= 0.1 + 1e-12].max())
    flat = membership_metrics(scores, member, bootstrap=4000, confidence=0.9).to_flat()
    # Two independent bootstraps: their quantiles differ by Monte Carlo error only (standard error about 0.003, 0.015).
    assert [flat["auc_low"], flat["auc_high"]] == pytest.approx(np.quantile(aucs, [0.05, 0.95]), abs=0.006)
    ends = [flat["tpr_at_10pct_fpr_low"], flat["tpr_at_10pct_fpr_high"]]
    assert ends == pytest.approx(np.quantile(tprs, [0.05, 0.95]), abs=0.03)


def auc_interval(gap: float, seed: int) -> MembershipMetrics:
    return membership_metrics(*normal_scores(100, 100, gap=gap, seed=seed), bootstrap=400, seed=seed)


@pytest.mark.parametrize(("gap", "truth"), [(0.0, 0.5), (1.0, 0.7602499)])
def test_the_auc_interval_covers_the_true_auc_about_95_times_in_100(gap: float, truth: float) -> None:
    # truth: Phi(gap / sqrt 2). The bounds are more than 3 binomial standard errors (1.1 %) away from 95 %.
    covered = [(m := auc_interval(gap, seed)).auc_low <= truth <= m.auc_high for seed in range(400)]
    assert 0.91 <= np.mean(covered) <= 0.985


def test_the_seed_fixes_the_intervals() -> None:
    scores, member = normal_scores(60, 60, gap=1.0, seed=0)
    first, again, other = (membership_metrics(scores, member, bootstrap=50, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_wider_confidence_gives_a_wider_interval() -> None:
    scores, member = normal_scores(60, 60, gap=1.0, seed=0)
    narrow, wide = (membership_metrics(scores, member, confidence=c) for c in (0.5, 0.99))
    assert wide.auc_low < narrow.auc_low < narrow.auc < narrow.auc_high < wide.auc_high


def test_a_thousand_resamples_are_fast() -> None:
    scores, member = normal_scores(700, 700, gap=0.3, seed=0)
    start = time.process_time()
    membership_metrics(scores, member)
    assert time.process_time() - start < 2.0


@pytest.mark.parametrize(("bootstrap", "confidence"), [(0, 0.95), (10, 0.0), (10, 1.0)])
def test_bad_bootstrap_settings_are_refused(bootstrap: int, confidence: float) -> None:
    with pytest.raises(AttackInputError, match=r"(bootstrap|confidence) must"):
        membership_metrics(*normal_scores(5, 5, 0.0, 0), bootstrap=bootstrap, confidence=confidence)
