from __future__ import annotations

import math

import pytest
from opacus.accountants import PRVAccountant, RDPAccountant
from opacus.accountants.utils import get_noise_multiplier
from scipy.optimize import brentq
from scipy.stats import norm

from gradient_disclosure.defenses.dp_sgd_accounting import default_delta, privacy_spent, solve_noise_multiplier
from gradient_disclosure.errors import UnsupportedTrainingError

ACCOUNTANTS = {"prv": PRVAccountant, "rdp": RDPAccountant}


def epsilon_of_gaussians(noise_multiplier: float, steps: int, delta: float) -> float:
    """Exact ε of steps without sampling: one Gaussian mechanism with σ/√steps (Balle and Wang 2018)."""
    mu = math.sqrt(steps) / noise_multiplier

    def excess(epsilon: float) -> float:
        reached = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return float(reached - delta)

    return float(brentq(excess, 0.0, 50.0))


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
@pytest.mark.parametrize("history", [[(1.1, 0.05, 300)], [(2.0, 0.1, 40), (1.5, 0.2, 10)]])
def test_epsilon_is_that_of_opacus(accountant: str, history: list[tuple[float, float, int]]) -> None:
    reference = ACCOUNTANTS[accountant]()
    reference.history = list(history)
    epsilon, source = privacy_spent(history, 1e-5, accountant)
    assert source == accountant
    assert epsilon == pytest.approx(reference.get_epsilon(1e-5), rel=1e-12)


@pytest.mark.parametrize(("noise_multiplier", "steps"), [(1.0, 1), (4.0, 10)])
def test_both_accountants_bound_the_exact_epsilon_and_prv_is_tight(noise_multiplier: float, steps: int) -> None:
    exact = epsilon_of_gaussians(noise_multiplier, steps, 1e-5)
    history = [(noise_multiplier, 1.0, steps)]
    prv, _ = privacy_spent(history, 1e-5, "prv")
    rdp, _ = privacy_spent(history, 1e-5, "rdp")
    assert exact <= prv <= exact + 0.025  # its error bound of 0.01, twice
    assert prv < rdp < 1.3 * exact


def test_prv_is_not_tried_where_it_would_overflow() -> None:
    reference = RDPAccountant()
    reference.history = [(0.2, 0.1, 330)]
    epsilon, source = privacy_spent(reference.history, 1e-4, "prv")
    assert source == "rdp"
    assert epsilon == pytest.approx(reference.get_epsilon(1e-4))
    assert epsilon > 100


def test_no_steps_cost_nothing_and_no_noise_costs_everything() -> None:
    assert privacy_spent([], 1e-5, "prv") == (0.0, "prv")
    assert privacy_spent([(1.0, 0.1, 5), (0.0, 0.1, 1)], 1e-5, "prv") == (math.inf, "prv")


@pytest.mark.parametrize(("target", "steps", "accountant"), [(8.0, 60, "prv"), (1.0, 60, "rdp"), (50.0, 60, "rdp")])
def test_noise_meets_the_budget_and_is_not_wasted(target: float, steps: int, accountant: str) -> None:
    sigma = solve_noise_multiplier(target, 1e-4, 0.1, steps, accountant)
    reference = ACCOUNTANTS[accountant]()
    reference.history = [(sigma, 0.1, steps)]
    assert target - 0.02 < reference.get_epsilon(1e-4) <= target


def test_noise_is_that_of_opacus_solver() -> None:
    ours = solve_noise_multiplier(4.0, 1e-4, 0.1, 60, "rdp")
    theirs = get_noise_multiplier(
        target_epsilon=4.0, target_delta=1e-4, sample_rate=0.1, steps=60, accountant="rdp", epsilon_tolerance=1e-4
    )
    assert ours == pytest.approx(theirs, rel=3e-3)


def test_a_budget_out_of_reach() -> None:
    with pytest.raises(UnsupportedTrainingError, match=r"No amount of noise.* epsilon 0\.001 .*raise target_epsilon"):
        solve_noise_multiplier(0.001, 1e-5, 0.1, 60, "rdp")


def test_default_delta() -> None:
    assert default_delta(700) == pytest.approx(1 / 7000)
