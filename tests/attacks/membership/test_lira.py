from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from scipy.stats import norm

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import lira_scores, membership_metrics

Variance = Literal["pooled", "per_example"]


def balanced_masks(models: int, examples: int, rng: np.random.Generator) -> np.ndarray:
    """(n, N): each example in exactly half of the models."""
    return np.stack([rng.permutation(models) < models // 2 for _ in range(examples)], axis=1)


def signals(models: int, examples: int, gap: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(n + 1, N) signals of n shadow models and, last, of the target; their masks; each example has its own mean."""
    rng = np.random.default_rng(seed)
    masks = np.vstack([balanced_masks(models, examples, rng), rng.permutation(examples) < examples // 2])
    difficulty = rng.normal(scale=3.0, size=examples)
    return difficulty + gap * masks + rng.normal(size=masks.shape), masks[:-1], masks[-1]


def by_loop(
    target: np.ndarray, shadow: np.ndarray, masks: np.ndarray, *, online: bool, variance: Variance
) -> np.ndarray:
    """LiRA, example by example and with scipy's distributions."""
    deviations: dict[bool, list[float]] = {True: [], False: []}
    for j in range(len(target)):
        for side in (True, False):
            chosen = [shadow[i, j] for i in range(len(shadow)) if masks[i, j] == side]
            deviations[side] += [value - np.mean(chosen) for value in chosen]
    scores = []
    for j in range(len(target)):
        normals = {}
        for side in (True, False):
            chosen = shadow[masks[:, j] == side, j]
            if variance == "pooled":
                freedom = int((masks == side).sum()) - len(target)
                std = np.sqrt(np.sum(np.square(deviations[side])) / freedom)
            else:
                std = np.std(chosen, ddof=1)
            normals[side] = norm(np.mean(chosen), std)
        if online:
            scores.append(normals[True].logpdf(target[j]) - normals[False].logpdf(target[j]))
        else:
            scores.append(normals[False].logcdf(target[j]))
    return np.array(scores)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("variance", ["pooled", "per_example"])
def test_scores_equal_an_independent_loop(online: bool, variance: Variance) -> None:
    values, masks, _ = signals(8, 30, gap=1.0, seed=0)
    expected = by_loop(values[-1], values[:-1], masks, online=online, variance=variance)
    scores = lira_scores(values[-1], values[:-1], masks, online=online, variance=variance)
    np.testing.assert_allclose(scores, expected, rtol=1e-10, atol=1e-10)


def test_unequal_numbers_of_models_are_weighted_by_their_degrees_of_freedom() -> None:
    rng = np.random.default_rng(1)
    masks = rng.random((9, 20)) < 0.4
    masks[:2], masks[2:4] = True, False
    values = rng.normal(size=(10, 20))
    expected = by_loop(values[-1], values[:-1], masks, online=True, variance="pooled")
    np.testing.assert_allclose(lira_scores(values[-1], values[:-1], masks, online=True), expected, rtol=1e-10)


def test_pooled_variance_is_unbiased() -> None:
    # With 2 in and 2 out models an estimate with the wrong degrees of freedom is off by a factor of 2. The target lies
    # at the out mean, so the score is the log ratio of the densities there and gives the in variance back.
    values, masks, _ = signals(4, 20_000, gap=0.0, seed=2)
    shadow = values[:-1]
    out_mean = np.where(~masks, shadow, 0).sum(0) / 2
    in_mean = np.where(masks, shadow, 0).sum(0) / 2
    scores = lira_scores(out_mean, shadow, masks, online=True).numpy()
    # score = -(out_mean - in_mean)^2 / (2 var_in) + log(sd_out / sd_in); the slope holds 1 / (2 var_in).
    slope = np.polyfit((out_mean - in_mean) ** 2, scores, 1)[0]
    assert -1 / (2 * slope) == pytest.approx(1.0, rel=0.03)


def test_torch_and_numpy_inputs_agree() -> None:
    values, masks, _ = signals(4, 10, gap=1.0, seed=3)
    tensors = (torch.from_numpy(values[-1]), torch.from_numpy(values[:-1]), torch.from_numpy(masks))
    assert torch.equal(lira_scores(*tensors, online=True), lira_scores(values[-1], values[:-1], masks, online=True))


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("variance", ["pooled", "per_example"])
def test_a_planted_signal_is_found(online: bool, variance: Variance) -> None:
    values, masks, member = signals(16, 400, gap=2.0, seed=4)
    scores = lira_scores(values[-1], values[:-1], masks, online=online, variance=variance)
    # Bayes-optimal AUC of two unit normals 2 apart is 0.921; estimated means cost some of it.
    assert membership_metrics(scores, member).auc_low > 0.8


@pytest.mark.parametrize("online", [True, False])
def test_random_membership_gives_chance(online: bool) -> None:
    inside = 0
    for seed in range(40):
        values, masks, member = signals(8, 200, gap=0.0, seed=100 + seed)
        metrics = membership_metrics(lira_scores(values[-1], values[:-1], masks, online=online), member, bootstrap=300)
        inside += metrics.auc_low <= 0.5 <= metrics.auc_high
    # 95 % intervals: fewer than 34 of 40 has probability 0.003, 40 of 40 is likely enough to allow.
    assert inside >= 34


def test_the_offline_score_still_ranks_far_members() -> None:
    shadow = np.array([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    scores = lira_scores(np.array([40.0, 60.0, -60.0]), shadow, np.zeros((2, 3), dtype=bool), online=False)
    assert scores[1] >= scores[0] > scores[2]
    assert torch.isfinite(scores).all()
    assert scores[2] < -3000  # the log of a probability that is 0 in float64


def test_offline_needs_no_in_models() -> None:
    shadow = np.array([[0.0], [1.0]])
    out_only = np.zeros((2, 1), dtype=bool)
    assert lira_scores(np.array([0.5]), shadow, out_only, online=False).item() == pytest.approx(np.log(0.5))
    with pytest.raises(AttackInputError, match=r'"in" distribution needs at least 1 .* examples \[0\]'):
        lira_scores(np.array([0.5]), shadow, out_only, online=True)


def test_too_few_models_for_a_variance_are_named() -> None:
    values, masks, _ = signals(4, 5, gap=0.0, seed=5)
    masks[:, 2] = [True, False, False, False]
    with pytest.raises(AttackInputError, match=r'"in".*at least 2 .* examples \[2\].*use variance="pooled"'):
        lira_scores(values[-1], values[:-1], masks, online=True, variance="per_example")
    assert torch.isfinite(lira_scores(values[-1], values[:-1], masks, online=True)).all()
    with pytest.raises(AttackInputError, match="variance cannot be estimated"):
        lira_scores(values[-1], values[:2], np.array([[True] * 5, [False] * 5]), online=True)


def test_signals_without_spread_are_refused() -> None:
    values, masks, _ = signals(4, 5, gap=0.0, seed=6)
    values[:, 3] = 0.1
    with pytest.raises(AttackInputError, match=r"examples \[3\] are the same under every shadow model"):
        lira_scores(values[-1], values[:-1], masks, online=False, variance="per_example")


def test_bad_shapes_and_values_are_refused() -> None:
    values, masks, _ = signals(4, 5, gap=0.0, seed=7)
    with pytest.raises(AttackInputError, match=r"shadow_signals must have shape \(n, 4\)"):
        lira_scores(values[-1, :4], values[:-1], masks, online=True)
    with pytest.raises(AttackInputError, match=r"shadow_membership must have shape \(4, 5\)"):
        lira_scores(values[-1], values[:-1], masks[:3], online=True)
    broken = values[:-1].copy()
    broken[1, 4] = np.nan
    with pytest.raises(AttackInputError, match=r"shadow_signals holds NaN or infinity at index \[\[1, 4\]\]"):
        lira_scores(values[-1], broken, masks, online=True)
    target = values[-1].copy()
    target[2] = np.inf
    with pytest.raises(AttackInputError, match=r"target_signal holds NaN or infinity at index \[2\]"):
        lira_scores(target, values[:-1], masks, online=True)
    with pytest.raises(AttackInputError, match=r'variance must be "pooled" or "per_example"'):
        lira_scores(values[-1], values[:-1], masks, online=True, variance="fixed")  # type: ignore[arg-type]
