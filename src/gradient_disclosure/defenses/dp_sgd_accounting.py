"""Privacy spent by DP-SGD, and the noise that a privacy budget asks for; Opacus's accountants do the arithmetic."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

from opacus.accountants import create_accountant

from gradient_disclosure.errors import UnsupportedTrainingError

Accountant = Literal["prv", "rdp"]
History = Sequence[tuple[float, float, int]]
"""(noise multiplier, sampling rate, number of steps) of each stretch of training."""

# Beyond this the PRV accountant takes minutes, overflows and ends at infinity; no budget of that size means anything.
_LARGEST_EPSILON_FOR_PRV = 100.0


def default_delta(n: int) -> float:
    """δ = 1 / (10 n).

    A mechanism that publishes one random member in full satisfies (0, 1/n)-DP, so δ has to stay clearly below 1/n: here
    the expected number of members it may expose in full is at most 0.1.

    Args:
        n: number of members.

    Example:
        >>> default_delta(1000)
        0.0001
    """
    return 1.0 / (10 * n)


def privacy_spent(history: History, delta: float, accountant: Accountant) -> tuple[float, Accountant]:
    """Upper bound of ε at δ for a series of Poisson-subsampled Gaussian steps, adding or removing one member.

    "prv" composes privacy loss distributions numerically (Gopi et al. 2021, "Numerical Composition of Differential
    Privacy") and is the tighter one; its ε includes an error bound of 0.01. "rdp" (Mironov 2017) is looser by about
    10 % at ε between 1 and 50, cheap and robust. Where the RDP bound exceeds 100, PRV is not tried and RDP is used.

    Args:
        history: the steps taken.
        delta: δ in (0, 1).
        accountant: which bound is wanted.

    Returns:
        ε, and the accountant it comes from.

    Example:
        >>> epsilon, source = privacy_spent([(1.0, 0.1, 100)], delta=1e-5, accountant="rdp")
        >>> round(epsilon, 2), source
        (7.9, 'rdp')
    """
    if not history:
        return 0.0, accountant
    if any(noise_multiplier == 0 for noise_multiplier, _, _ in history):
        return math.inf, accountant
    steps = tuple(history)
    bound = _epsilon(steps, delta, "rdp")
    if accountant == "rdp" or bound > _LARGEST_EPSILON_FOR_PRV:
        return bound, "rdp"
    return _epsilon(steps, delta, "prv"), "prv"


@lru_cache(maxsize=1024)  # a cohort of shadow models asks for the same history over and over
def _epsilon(history: tuple[tuple[float, float, int], ...], delta: float, accountant: Accountant) -> float:
    mechanism = create_accountant(mechanism=accountant)
    mechanism.history = list(history)
    with warnings.catch_warnings():
        # Opacus advises to search more RDP orders, and PRV takes log(1 - rate) at rate 1; both bounds stay valid.
        warnings.simplefilter("ignore")
        return float(mechanism.get_epsilon(delta))


@lru_cache(maxsize=256)
def solve_noise_multiplier(
    target_epsilon: float, delta: float, sampling_rate: float, steps: int, accountant: Accountant
) -> float:
    """Smallest noise multiplier (to 1e-4 of itself or 0.01 in ε) whose ε after ``steps`` is within the target.

    Args:
        target_epsilon: the budget.
        delta: δ.
        sampling_rate: probability that a member is in a batch.
        steps: number of optimizer steps of the whole training.
        accountant: as in `privacy_spent`.

    Raises:
        UnsupportedTrainingError: no noise up to 1e5 is enough.

    Example:
        >>> sigma = solve_noise_multiplier(8.0, 1e-5, 0.1, 100, "rdp")
        >>> 7.98 < privacy_spent([(sigma, 0.1, 100)], 1e-5, "rdp")[0] <= 8.0
        True
    """

    def epsilon(noise_multiplier: float) -> float:
        return privacy_spent([(noise_multiplier, sampling_rate, steps)], delta, accountant)[0]

    high, at_high = 1.0, epsilon(1.0)
    while at_high > target_epsilon:
        if high > 1e5:
            raise UnsupportedTrainingError(
                f"No amount of noise brings {steps} steps at sampling rate {sampling_rate:.3g} within epsilon "
                f"{target_epsilon} at delta {delta:.3g} by the {accountant} accountant: raise target_epsilon."
            )
        high, at_high = 2.0 * high, epsilon(2.0 * high)
    low, at_low = high / 2.0, epsilon(high / 2.0)
    while at_low <= target_epsilon:
        high, at_high = low, at_low
        low, at_low = low / 2.0, epsilon(low / 2.0)
    attempt = 0
    while target_epsilon - at_high > 0.01 and high - low > 1e-4 * high:
        attempt += 1
        # ε is close to a power of σ, so interpolation on log scales needs few of the slow evaluations; halving now and
        # then makes sure that the interval shrinks.
        share = 0.5 if attempt % 3 == 0 else math.log(at_low / (target_epsilon - 0.005)) / math.log(at_low / at_high)
        middle = low * (high / low) ** share
        if (at_middle := epsilon(middle)) <= target_epsilon:
            high, at_high = middle, at_middle
        else:
            low, at_low = middle, at_middle
    return high
