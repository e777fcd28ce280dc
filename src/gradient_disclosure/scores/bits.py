"""From gradient uniqueness to bits about membership, and from bits to the best an attacker can do.

Everything here assumes independent (Poisson) draws with a known sampling rate; with shuffled epochs the figures are an
approximation and are labelled so by their callers. The three figures of one step:

* :func:`paper_bits`, f of the seed paper: an approximation, not a proven bound, and without limit for large scores.
* :func:`gaussian_bits`: the mutual information if the rest of the batch plus noise is Gaussian, by quadrature.
* :func:`step_cap`: data processing through the batch indicator; no score can exceed it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.special import xlogy
from torch import Tensor

TABLE_LOG10_RANGE = (-7.0, 5.0)
"""log10 μ² between which I is tabulated: below, I is linear in μ²; above, it equals the cap."""
TABLE_POINTS = 721


@dataclass(frozen=True)
class Sampling:
    """How examples come to be in a batch.

    Attributes:
        rate: r, probability that a MEMBER enters a given batch; b/n, or 1/steps per epoch with shuffled epochs.
        prior: q, probability that an example of the pool is a member.

    Example:
        >>> round(Sampling(rate=0.01, prior=0.5).inclusion, 4)
        0.005
    """

    rate: float
    prior: float = 0.5

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"the sampling rate must lie in (0, 1], got {self.rate}")
        if not 0.0 < self.prior < 1.0:
            raise ValueError(f"the membership prior must lie in (0, 1), got {self.prior}")

    @property
    def inclusion(self) -> float:
        """P = q·r: probability that an example of the pool enters a given batch, its membership unknown."""
        return self.prior * self.rate


def binary_entropy(p: float) -> float:
    """h2(p) in bits; 0 at p = 0 and p = 1.

    Example:
        >>> binary_entropy(0.5)
        1.0
    """
    if p <= 0.0 or p >= 1.0:
        return 0.0
    return -(p * math.log2(p) + (1.0 - p) * math.log2(1.0 - p))


def paper_bits(gnq: Tensor, sampling: Sampling) -> Tensor:
    """The seed paper's f: ``[log2(1 + x) − q log2(1 + a x)] / 2`` with ``a = (1 − r)/(q (1 − q r))``.

    Args:
        gnq: (...) x ≥ 0, in universe units.
        sampling: r and q.

    Returns:
        (...) float64 bits of one step.

    Example:
        >>> import torch
        >>> round(float(paper_bits(torch.tensor(0.1), Sampling(0.01))), 4)
        0.0033
    """
    q, r = sampling.prior, sampling.rate
    a = (1.0 - r) / (q * (1.0 - q * r))
    x = gnq.double()
    return (torch.log1p(x) - q * torch.log1p(a * x)) / (2.0 * math.log(2.0))


def gaussian_bits(gnq: Tensor, sampling: Sampling) -> Tensor:
    """Mutual information of membership with one draw, if everything but the example's own gradient is Gaussian.

    T = 1 gives a draw from ``(1 − r) N(0,1) + r N(μ,1)``, T = 0 one from ``N(0,1)``, with ``μ² = x/(qr(1 − qr))``.
    Exact for one step under that assumption (DP-SGD's real noise makes it true), otherwise not an upper bound. Values
    come from a table of quadratures, monotone in x, interpolated in log x (relative error below 1e-6; tested against
    brute force).

    Args:
        gnq: (...) x ≥ 0, leave-one-out, in universe units.
        sampling: r and q.

    Returns:
        (...) float64 bits of one step.

    Example:
        >>> import torch
        >>> round(float(gaussian_bits(torch.tensor(0.1), Sampling(0.01))), 4)
        0.004
    """
    p = sampling.inclusion
    x = gnq.detach().double().cpu().numpy()
    squared_shift = x / (p * (1.0 - p))
    low, high = TABLE_LOG10_RANGE
    table = _gaussian_table(sampling)
    with np.errstate(divide="ignore"):
        position = np.log10(squared_shift)
    inside = np.exp(table(np.clip(position, low, high)))
    # Below the table the information is linear in μ²: the mixture's mean moves by rμ, I ≈ q(1−q) r²μ²/(2 ln 2).
    scaled = np.exp(table(low)) * 10.0 ** (np.minimum(position, low) - low)
    return torch.from_numpy(np.where(position < low, scaled, inside)).to(gnq.device)


def mixture_information(squared_shift: float, sampling: Sampling) -> float:
    """I(T; Z) in bits for one value of μ², by quadrature around both modes, with log-sum-exp.

    Args:
        squared_shift: μ² ≥ 0.
        sampling: r and q.

    Returns:
        Bits.

    Example:
        >>> mixture_information(0.0, Sampling(0.01))
        0.0
    """
    r, q = sampling.rate, sampling.prior
    mu = math.sqrt(squared_shift)
    z, weights = _normal_grid()

    # An average over the even mixture of N(0,1) and N(μ,1), by points around each mode: it covers both hypotheses.
    shifts = mu * np.stack([z, z + mu]) - 0.5 * mu * mu
    return float((_information_density(shifts, r, q) @ weights).mean()) / math.log(2.0)


def _information_density(shift: np.ndarray, r: float, q: float) -> np.ndarray:
    """Mutual information in nats per unit of the even mixture's density, at log(N(μ,1)/N(0,1)) = ``shift``.

    With w = p1/p0 − 1 it is ``q h(w) − h(q w)`` per unit of p0, where h(w) = (1 + w) log(1 + w) − w: nothing cancels as
    w → 0, and the information about a rarely drawn example may be as small as 1e-15 bits.
    """
    mixture = np.logaddexp(0.0, shift) - math.log(2.0)
    excess = r * np.expm1(np.minimum(shift, 700.0))
    w = np.minimum(excess, 0.5)
    near = (q * _h(w) - _h(q * w)) * np.exp(-mixture)
    with np.errstate(divide="ignore"):
        log_ratio = np.logaddexp(np.log1p(-r), math.log(r) + shift)
    log_mean = np.logaddexp(math.log(q) + log_ratio, math.log1p(-q))
    far = q * (log_ratio - log_mean) * np.exp(log_ratio - mixture) - (1.0 - q) * log_mean * np.exp(-mixture)
    density: np.ndarray = np.where(excess < 0.5, near, far)
    return density


def _h(w: np.ndarray) -> np.ndarray:
    """(1 + w) log(1 + w) − w, by its power series where the difference would cancel."""
    small = np.abs(w) < 0.01
    direct = xlogy(1.0 + w, 1.0 + w) - w
    series = sum((-1.0) ** k * w**k / (k * (k - 1)) for k in range(2, 10))
    value: np.ndarray = np.where(small, series, direct)
    return value


@lru_cache(maxsize=1)
def _normal_grid() -> tuple[np.ndarray, np.ndarray]:
    """Points and weights of an integral against N(0,1): the trapezoidal rule, which converges geometrically here."""
    z = np.linspace(-12.0, 12.0, 801)
    w = np.exp(-0.5 * z * z)
    return z, w / w.sum()


@lru_cache(maxsize=32)
def _gaussian_table(sampling: Sampling) -> PchipInterpolator:
    """Ln I as a monotone function of log10 μ²."""
    grid = np.linspace(*TABLE_LOG10_RANGE, TABLE_POINTS)
    values = np.array([mixture_information(10.0**g, sampling) for g in grid])
    return PchipInterpolator(grid, np.log(values))


def step_cap(sampling: Sampling) -> float:
    """I(T; u) = h2(qr) − q h2(r): what the batch indicator itself tells, in bits; no step can disclose more.

    Example:
        >>> round(step_cap(Sampling(0.01)), 5)
        0.00502
    """
    return binary_entropy(sampling.inclusion) - sampling.prior * binary_entropy(sampling.rate)


def run_cap(sampling: Sampling, steps: int, *, poisson: bool) -> float:
    """What a whole run of ``steps`` steps can disclose about one membership, rigorously, in bits.

    Args:
        sampling: r and q.
        steps: number of steps n.
        poisson: independent draws. With shuffled epochs each member is seen for certain, and the cap is h2(q).

    Returns:
        ``h2(q) − P0 · h2(q(1 − r)ⁿ / P0)`` with ``P0 = 1 − q + q(1 − r)ⁿ``.

    Example:
        >>> [round(run_cap(Sampling(0.01), 100 * k, poisson=True), 3) for k in (1, 2, 5)]
        [0.427, 0.703, 0.971]
    """
    q = sampling.prior
    if not poisson:
        return binary_entropy(q)
    never_drawn = q * (1.0 - sampling.rate) ** steps
    unseen = 1.0 - q + never_drawn
    return binary_entropy(q) - unseen * binary_entropy(never_drawn / unseen)


@dataclass(frozen=True)
class AttackerCeiling:
    """The best any attacker can do with a given number of bits about membership.

    Attributes:
        accuracy: highest accuracy of guessing membership (Fano).
        advantage: highest TPR − FPR (Pinsker).
        tpr_at_1pct_fpr: highest true-positive rate at a false-positive rate of 1 %.
    """

    accuracy: float
    advantage: float
    tpr_at_1pct_fpr: float


def attacker_ceiling(bits: float, prior: float = 0.5) -> AttackerCeiling:
    """Convert bits about one membership into limits on attacks against it.

    Args:
        bits: B, mutual information between membership and all that the attacker sees.
        prior: q.

    Returns:
        The ceilings; all 1 once the bits reach h2(q) (the bound is then vacuous).

    Example:
        >>> ceiling = attacker_ceiling(0.1)
        >>> round(ceiling.accuracy, 3), round(ceiling.tpr_at_1pct_fpr, 3)
        (0.684, 0.23)
    """
    entropy = binary_entropy(prior)
    if bits >= entropy:
        return AttackerCeiling(1.0, 1.0, 1.0)
    bits = max(bits, 0.0)
    error = _inverse_entropy(entropy - bits)
    variation = math.sqrt(bits * math.log(2.0) / (2.0 * prior * (1.0 - prior)))
    return AttackerCeiling(1.0 - error, min(1.0, variation), _best_tpr(bits, 0.01, prior))


def _inverse_entropy(value: float) -> float:
    """h2⁻¹ on [0, ½]."""
    if value <= 0.0:
        return 0.0
    if value >= 1.0:
        return 0.5
    return float(brentq(lambda p: binary_entropy(p) - value, 1e-300, 0.5, xtol=1e-15))


def _binary_information(tpr: float, fpr: float, prior: float) -> float:
    """I(T; guess) of an attack with these rates."""
    positive = prior * tpr + (1.0 - prior) * fpr
    return binary_entropy(positive) - prior * binary_entropy(tpr) - (1.0 - prior) * binary_entropy(fpr)


def _best_tpr(bits: float, fpr: float, prior: float) -> float:
    """Largest TPR whose binary channel carries no more than ``bits``."""
    if _binary_information(1.0, fpr, prior) <= bits:
        return 1.0
    return float(brentq(lambda tpr: _binary_information(tpr, fpr, prior) - bits, fpr, 1.0, xtol=1e-12))
