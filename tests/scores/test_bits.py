from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from gradient_disclosure.scores.bits import (
    Sampling,
    attacker_ceiling,
    binary_entropy,
    gaussian_bits,
    mixture_information,
    paper_bits,
    run_cap,
    step_cap,
)
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import gnq_scores


def brute_force(squared_shift: float, r: float, q: float) -> float:
    """I(T; Z) by adaptive integration of the textbook formula, densities and all."""
    mu = math.sqrt(squared_shift)

    def integrand(z: float) -> float:
        p0 = norm.pdf(z)
        p1 = (1 - r) * p0 + r * norm.pdf(z - mu)
        mean = q * p1 + (1 - q) * p0
        total = 0.0
        for weight, density in ((q, p1), (1 - q, p0)):
            if density > 0:
                total += weight * density * math.log2(density / mean)
        return total

    points = sorted({0.0, mu, mu / 2})
    value, _ = quad(integrand, -12, mu + 12, points=points, limit=2000, epsabs=1e-14, epsrel=1e-10)
    return value


@pytest.mark.parametrize("r", [0.01, 0.1, 0.5, 0.95])
@pytest.mark.parametrize("q", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("squared_shift", [0.01, 1.0, 9.0, 60.0, 400.0])
def test_quadrature_against_brute_force(squared_shift: float, r: float, q: float) -> None:
    expected = brute_force(squared_shift, r, q)
    assert mixture_information(squared_shift, Sampling(r, q)) == pytest.approx(expected, rel=1e-6, abs=1e-11)


@pytest.mark.parametrize("sampling", [Sampling(0.01), Sampling(0.09, 0.3), Sampling(1.0)])
def test_table_against_quadrature(sampling: Sampling) -> None:
    p = sampling.inclusion
    x = np.exp(np.random.default_rng(0).uniform(np.log(1e-9), np.log(1e6), 200))
    expected = [mixture_information(v / (p * (1 - p)), sampling) for v in x]
    got = gaussian_bits(torch.from_numpy(x), sampling).numpy()
    large = x / (p * (1 - p)) > 1e-3  # below, the quadrature itself cancels; there the limit is the witness
    np.testing.assert_allclose(got[large], np.array(expected)[large], rtol=1e-5)
    small = x / (p * (1 - p)) < 1e-5
    q, r = sampling.prior, sampling.rate
    limit = q * (1 - q) * r**2 * x / (p * (1 - p)) / (2 * math.log(2))
    np.testing.assert_allclose(got[small], limit[small], rtol=1e-3)


@pytest.mark.parametrize("r", [1e-6, 1e-4, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("squared_shift", [1e-6, 1e-3, 1.0, 9.0])
def test_small_information_does_not_cancel(squared_shift: float, r: float) -> None:
    """Against 40-digit arithmetic, where the textbook formula itself may cancel freely."""
    with mpmath.workdps(40):
        mu, rate, q = mpmath.sqrt(squared_shift), mpmath.mpf(r), mpmath.mpf("0.5")

        def integrand(z: mpmath.mpf) -> mpmath.mpf:
            p0 = mpmath.npdf(z)
            p1 = (1 - rate) * p0 + rate * mpmath.npdf(z - mu)
            mean = q * p1 + (1 - q) * p0
            return q * p1 * mpmath.log(p1 / mean, 2) + (1 - q) * p0 * mpmath.log(p0 / mean, 2)

        exact = mpmath.quad(integrand, [-12, -6, -3, 0, 3, 6, 9, 12, 16])
    assert mixture_information(squared_shift, Sampling(r)) == pytest.approx(float(exact), rel=1e-10)


def test_published_figures_of_the_spec() -> None:
    sampling = Sampling(0.01, 0.5)
    x = torch.tensor([0.1])
    assert float(gaussian_bits(x, sampling)) == pytest.approx(0.0040, abs=5e-5)
    assert float(paper_bits(x, sampling)) == pytest.approx(0.0033, abs=5e-5)
    around_crossing = torch.tensor([0.11, 0.13])  # f lies below the Gaussian figure for small x only
    assert (paper_bits(around_crossing, sampling) < gaussian_bits(around_crossing, sampling)).tolist() == [True, False]
    assert [round(run_cap(sampling, n, poisson=True), 3) for n in (100, 200, 500)] == [0.427, 0.703, 0.971]
    assert [round(step_cap(sampling) * n, 3) for n in (100, 200, 500)] == [0.502, 1.004, 2.509]
    assert run_cap(sampling, 100, poisson=False) == 1.0
    assert attacker_ceiling(0.01).accuracy == pytest.approx(0.559, abs=5e-4)
    assert attacker_ceiling(0.01).tpr_at_1pct_fpr == pytest.approx(0.048, abs=5e-4)
    assert attacker_ceiling(0.1).accuracy == pytest.approx(0.684, abs=5e-4)
    assert attacker_ceiling(0.1).tpr_at_1pct_fpr == pytest.approx(0.230, abs=5e-4)


def test_paper_bits_against_log_determinants() -> None:
    """f is ½ log-det(unconditional) minus its conditional average: checked on random covariances."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        d, q, r = 4, rng.uniform(0.1, 0.9), rng.uniform(0.05, 0.95)
        p = q * r
        root = rng.normal(size=(d, d))
        rest = root @ root.T + 0.1 * np.eye(d)  # S without j, plus λI
        g = rng.normal(size=d)
        x = g @ np.linalg.solve(rest, g)

        def entropy(weight: float, rest: np.ndarray = rest, g: np.ndarray = g, p: float = p) -> float:
            return 0.5 * np.linalg.slogdet(p * (1 - p) * rest + weight * np.outer(g, g))[1] / math.log(2)

        unconditional = entropy(p * (1 - p))
        conditional = q * entropy(r * (1 - r)) + (1 - q) * entropy(0.0)
        got = float(paper_bits(torch.tensor(x), Sampling(r, q)))
        assert got == pytest.approx(unconditional - conditional, abs=1e-9)


def test_no_overflow_and_never_above_the_step_cap() -> None:
    sampling = Sampling(0.09, 0.5)
    values = gaussian_bits(torch.tensor([0.0, 1e-300, 1e3, 1e300]), sampling)
    assert torch.isfinite(values).all()
    assert float(values[0]) == 0.0
    assert float(values[-1]) <= step_cap(sampling) * (1 + 1e-9)
    assert float(values[-1]) == pytest.approx(step_cap(sampling), rel=1e-6)


def test_bits_increase_with_the_score() -> None:
    x = torch.logspace(-8, 8, 400)
    for bits in (gaussian_bits, paper_bits):
        assert bool((bits(x, Sampling(0.05, 0.3)).diff() >= -1e-13).all())


def test_ceiling_is_tight_for_a_binary_symmetric_channel() -> None:
    """An attacker with error e gets 1 − h2(e) bits; from these bits the ceiling must give back accuracy 1 − e."""
    for error in (0.1, 0.3, 0.45):
        assert attacker_ceiling(1 - binary_entropy(error)).accuracy == pytest.approx(1 - error, abs=1e-9)
    assert attacker_ceiling(0.0).accuracy == pytest.approx(0.5)
    assert attacker_ceiling(0.0).tpr_at_1pct_fpr == pytest.approx(0.01, abs=1e-6)
    assert attacker_ceiling(1.0).accuracy == attacker_ceiling(5.0).advantage == 1.0


def test_dp_sgd_scale() -> None:
    """μ² = GNQ_batch(K', (σC)²/(1−p)) / (1−p), from clipped gradients themselves."""
    torch.manual_seed(0)
    gradients = torch.randn(5, 3, dtype=torch.float64) * 3
    mechanism, sampling = GaussianMechanism(1.5, 0.8), Sampling(0.2, 0.5)
    clipped = gradients * (1.5 / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
    torch.testing.assert_close(mechanism.clipped(gradients @ gradients.T), clipped @ clipped.T)
    damping = (0.8 * 1.5) ** 2 / (1 - 0.1)
    assert mechanism.damping(sampling) == pytest.approx(damping)
    alone = gnq_scores(torch.tensor([[1.5**2]], dtype=torch.float64), damping) / (1 - 0.1)
    assert float(alone) == pytest.approx((1 / 0.8) ** 2)


def test_bad_sampling_is_refused() -> None:
    for rate, prior in ((0.0, 0.5), (1.1, 0.5), (0.5, 0.0), (0.5, 1.0)):
        with pytest.raises(ValueError, match=r"must lie in"):
            Sampling(rate, prior)
