from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor

from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.scores.gnq import Damping, gnq_scores, gradient_uniqueness
from gradient_disclosure.scores.pinv import pseudo_inverse_uniqueness
from gradient_disclosure.scores.scope import SCOPES, universe_proxy


def over_the_universe(universe: Tensor, members: list[int], damping: float) -> np.ndarray:
    """g_jᵀ (Σ_{k≠j} g_k g_kᵀ + λI)⁻¹ g_j, the sum over all N examples, one d×d solve an example."""
    g = universe.numpy()
    total = g.T @ g + damping * np.eye(g.shape[1])
    return np.array([g[j] @ np.linalg.solve(total - np.outer(g[j], g[j]), g[j]) for j in members])


def toy_universe(size: int, dimension: int) -> Tensor:
    """Gradients with a decaying spectrum and norms that differ by an order of magnitude, as trainings give."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(size, dimension, generator=generator, dtype=torch.float64)
    spectrum = torch.arange(1, dimension + 1, dtype=torch.float64) ** -0.5
    norms = torch.exp(0.8 * torch.randn(size, 1, generator=generator, dtype=torch.float64))
    return directions * spectrum * norms


@pytest.mark.parametrize("copies", [2, 5, 40])
@pytest.mark.parametrize("damping", [1e-3, 1.0, 1e3])
def test_exact_where_the_batch_is_the_universe_in_small(copies: int, damping: float) -> None:
    """A universe of one example and ``copies`` of each other; the batch holds one of each: S_universe = S_batch/p."""
    torch.manual_seed(0)
    batch = torch.randn(7, 5, dtype=torch.float64)
    universe = torch.cat([batch[:1], batch[1:].repeat(copies, 1)])
    got = universe_proxy(batch @ batch.T, damping, Sampling(rate=2 / copies, prior=0.5))
    expected = over_the_universe(universe, [0], damping)
    assert float(got.scores[0]) == pytest.approx(float(expected[0]), rel=1e-9)
    assert (got.scope, got.inverse) == ("universe_proxy", "damped")
    assert got.damping == pytest.approx(damping)


def test_exact_in_the_limit_of_a_batch_that_is_the_universe() -> None:
    """p → 1: every example is in the batch, and the value is the definition's over all of them."""
    universe = toy_universe(30, 12)
    sampling = Sampling(rate=1.0, prior=1 - 1e-12)
    got = universe_proxy(universe @ universe.T, 0.3, sampling).scores
    expected = torch.from_numpy(over_the_universe(universe, list(range(30)), 0.3))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)


@pytest.fixture(scope="module")
def drawn() -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Universe values of 64 examples, and their proxies in batches of 64 and of 640, 40 draws of the others each."""
    universe, damping, fixed = toy_universe(2000, 100), 1.0, list(range(64))
    truth = over_the_universe(universe, fixed, damping)
    generator = torch.Generator().manual_seed(1)
    proxies = {}
    for size in (64, 640):
        rows = []
        for start in range(0, 64, 8):  # eight of the examples a batch, so that most of it is random
            for _ in range(5):
                others = torch.randperm(1936, generator=generator)[: size - 8] + 64
                batch = universe[torch.cat([torch.arange(start, start + 8), others])]
                rate = size / 1000  # of n = qN = 1000 members, q = 1/2
                rows.append(universe_proxy(batch @ batch.T, damping, Sampling(rate)).scores[:8].numpy())
        proxies[size] = np.array(rows).reshape(8, 5, 8).transpose(1, 0, 2).reshape(5, 64)
    return truth, proxies


def test_it_ranks_well_and_overestimates_on_average(drawn: tuple[np.ndarray, dict[int, np.ndarray]]) -> None:
    truth, proxies = drawn
    mean = {size: values.mean(axis=0) for size, values in proxies.items()}
    for size in proxies:
        assert spearmanr(proxies[size][0], truth).statistic > 0.97
        assert (mean[size] > truth).mean() > 0.95
    ratio = {size: float(np.median(values / truth)) for size, values in mean.items()}
    assert ratio[64] > 1.5 * ratio[640] > 1.5  # the fewer examples, the more pessimistic


def test_it_overestimates_as_wishart_matrices_say() -> None:
    """Gaussian gradients, λ → 0: E[S⁻¹] = Σ⁻¹/(n − d − 1) for n others, in the batch as in the universe."""
    size, dimension, batch_size, draws = 3000, 20, 60, 400
    generator = torch.Generator().manual_seed(0)
    universe = torch.randn(size, dimension, generator=generator, dtype=torch.float64)
    truth = float(over_the_universe(universe, [0], 1e-6)[0])
    proxies = []
    for _ in range(draws):
        others = torch.randperm(size - 1, generator=generator)[: batch_size - 1] + 1
        batch = universe[torch.cat([torch.zeros(1, dtype=torch.int64), others])]
        proxies.append(float(universe_proxy(batch @ batch.T, 1e-6, Sampling(2 * batch_size / size)).scores[0]))
    p, n, d = batch_size / size, batch_size - 1, dimension
    expected = p * (size - d - 2) / (n - d - 1)
    error = np.std(proxies) / draws**0.5 / truth
    assert abs(np.mean(proxies) / truth - expected) < 4 * error
    assert expected > 1 + 20 * error  # so that a proxy without bias, or unscaled, would fail


def test_it_does_not_depend_on_the_scale_of_the_loss() -> None:
    universe, sampling = toy_universe(20, 8), Sampling(0.1)
    gram, relative = universe @ universe.T, Damping(0.3, "relative")
    scaled = universe_proxy(gram * 49.0, relative.of(gram * 49.0), sampling)
    plain = universe_proxy(gram, relative.of(gram), sampling)
    torch.testing.assert_close(scaled.scores, plain.scores)
    assert plain.relative_damping == pytest.approx(0.3)


def test_by_pseudo_inverse_it_is_the_limit_of_no_damping() -> None:
    universe, sampling = toy_universe(20, 8), Sampling(0.1)
    gram = universe @ universe.T
    got = universe_proxy(gram, 1.0, sampling, inverse=lambda k, damping: pseudo_inverse_uniqueness(k))
    torch.testing.assert_close(got.scores, universe_proxy(gram, 1e-6, sampling).scores, rtol=1e-6, atol=0)
    assert (got.scope, got.inverse, got.damping) == ("universe_proxy", "pinv", 0.0)


@pytest.mark.parametrize("name", SCOPES)
def test_both_scopes_give_the_bits_the_same_x(name: str) -> None:
    """x = p · GNQ_batch(λp), whichever of the two is stored."""
    universe, sampling = toy_universe(20, 8), Sampling(0.2, 0.4)
    gram = universe @ universe.T
    in_units_of_the_scope = {"batch": 0.5 * 0.08, "universe_proxy": 0.5}[name]
    scores = SCOPES[name].score(gram, in_units_of_the_scope, gradient_uniqueness, sampling).scores
    expected = 0.08 * gnq_scores(gram, 0.5 * 0.08)
    torch.testing.assert_close(SCOPES[name].in_universe_units(scores, sampling), expected)
