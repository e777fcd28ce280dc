from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from gradient_disclosure.scores.bits import Sampling, gaussian_bits
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import gnq_scores

CLIP, NOISE = 1.5, 0.8
MECHANISM = GaussianMechanism(CLIP, NOISE)


def universe_in_small(copies: int) -> tuple[torch.Tensor, np.ndarray, Sampling]:
    """A batch, and the clipped gradients of a universe of its first example and ``copies`` of each other, p = 1/copies.

    For the first example S_universe = S_batch / p then holds exactly.
    """
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(7, 4, generator=generator, dtype=torch.float64) * 0.8
    clipped = np.array([g * min(1.0, CLIP / np.linalg.norm(g)) for g in batch.numpy()])
    assert 0 < (np.linalg.norm(clipped, axis=1) < CLIP * 0.999).sum() < 7  # some are clipped, some are not
    return batch, np.concatenate([clipped[:1], np.tile(clipped[1:], (copies, 1))]), Sampling(2 / copies, 0.5)


@pytest.mark.parametrize("copies", [2, 10, 1000])
def test_the_definition_in_universe_units(copies: int) -> None:
    """GNQ = g̃ᵀ(S̃ + λI)⁻¹g̃ over the universe with λ = (σC)²/(p(1 − p)), and p·GNQ_batch at the mechanism's λ."""
    batch, universe, sampling = universe_in_small(copies)
    p = 1 / copies
    literal = universe[1:].T @ universe[1:] + (NOISE * CLIP) ** 2 / (p * (1 - p)) * np.eye(4)
    expected = universe[0] @ np.linalg.solve(literal, universe[0])
    got = gnq_scores(MECHANISM.clipped(batch @ batch.T), MECHANISM.damping(sampling)) * sampling.inclusion
    assert float(got[0]) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize("copies", [2, 10])
def test_the_shift_is_that_of_the_released_sum(copies: int) -> None:
    """μ² = GNQ_batch/(1 − p): squared distance of means over the covariance of everything else that is released."""
    batch, universe, sampling = universe_in_small(copies)
    p = 1 / copies
    covariance = p * (1 - p) * universe[1:].T @ universe[1:] + (NOISE * CLIP) ** 2 * np.eye(4)
    expected = universe[0] @ np.linalg.solve(covariance, universe[0])
    score = gnq_scores(MECHANISM.clipped(batch @ batch.T), MECHANISM.damping(sampling))[0]
    assert float(score) / (1 - sampling.inclusion) == pytest.approx(float(expected), rel=1e-9)


def test_the_bits_are_those_of_the_mechanism_run_many_times() -> None:
    """One example alone, r = ½: mutual information of membership with the noised sum, by simulation."""
    sampling = Sampling(0.5, 0.5)
    generator = np.random.default_rng(0)
    runs, r, q = 2_000_000, 0.5, 0.5
    member = generator.random(runs) < q
    released = CLIP * (member & (generator.random(runs) < r)) + NOISE * CLIP * generator.standard_normal(runs)
    without, with_it = norm.pdf(released / (NOISE * CLIP)), norm.pdf((released - CLIP) / (NOISE * CLIP))
    likelihood = np.where(member, (1 - r) * without + r * with_it, without)
    information = np.log2(likelihood / ((1 - q * r) * without + q * r * with_it))
    score = gnq_scores(MECHANISM.clipped(torch.tensor([[25.0]])), MECHANISM.damping(sampling))
    bits = float(gaussian_bits(score * sampling.inclusion, sampling))
    assert abs(bits - information.mean()) < 4 * information.std() / runs**0.5
    assert bits > 0.05
