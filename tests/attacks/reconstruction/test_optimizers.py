from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from gradient_disclosure.attacks.reconstruction.descent import Descent
from gradient_disclosure.attacks.reconstruction.optimizers import LBFGS, MatchingOptimizer, SignedAdam
from gradient_disclosure.attacks.reconstruction.scale import InputScale

BOTH = pytest.mark.parametrize("optimizer", [LBFGS(iterations=100), SignedAdam(iterations=400)], ids=["lbfgs", "adam"])


def quadratic(minimum: Tensor, start: Tensor, *, bounded: bool = False, tolerance: float = 0.0) -> Descent:
    """An ill-conditioned bowl around ``minimum``."""
    curvature = torch.logspace(0, 2, len(minimum), dtype=torch.float64)

    def objective(at: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        return (curvature * (at[0] - minimum).square()).sum(), torch.zeros((), dtype=torch.float64)

    scale = InputScale.of((-1.0, 1.0) if bounded else None)
    return Descent([start.clone().requires_grad_()], objective, scale, tolerance)


@BOTH
def test_the_minimum_is_found(optimizer: MatchingOptimizer) -> None:
    minimum = torch.linspace(-0.9, 0.9, 5, dtype=torch.float64)
    descent = quadratic(minimum, torch.zeros(5, dtype=torch.float64))
    optimizer.run(descent, lambda fraction: None)
    assert descent.best is not None
    torch.testing.assert_close(descent.best[0], minimum, atol=1e-3, rtol=0)


@BOTH
def test_progress_rises_and_a_solved_descent_stops_early(optimizer: MatchingOptimizer) -> None:
    start = torch.full((5,), 0.5, dtype=torch.float64)
    fractions: list[float] = []
    optimizer.run(quadratic(-start, start), fractions.append)
    assert fractions == sorted(fractions)
    assert 0 < fractions[0] <= fractions[-1] <= 1
    full = len(fractions)
    fractions.clear()
    optimizer.run(quadratic(-start, start, tolerance=10.0), fractions.append)
    assert len(fractions) < full


def test_signed_adam_never_leaves_the_value_range() -> None:
    seen: list[float] = []

    def objective(at: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        seen.append(at[0].abs().max().item())
        return (at[0] - 5).square().sum(), torch.zeros(())

    descent = Descent([torch.tensor([-3.0], requires_grad=True)], objective, InputScale.of((0.0, 1.0)), 0.0)
    SignedAdam(iterations=30).run(descent, lambda fraction: None)
    assert max(seen) == 1.0
    assert descent.best is not None
    assert descent.best[0].item() == 1.0


def test_signed_adam_is_blind_to_the_scale_of_the_loss_and_its_step_decays() -> None:
    def path(scale: float) -> list[float]:
        points: list[float] = []

        def objective(at: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            points.append(at[0].item())
            return scale * at[0].sum(), torch.zeros(())

        descent = Descent(
            [torch.zeros(1, dtype=torch.float64, requires_grad=True)], objective, InputScale.of(None), -1e9
        )
        SignedAdam(iterations=16, step_size=1.0).run(descent, lambda fraction: None)
        return points

    points = path(1.0)
    assert path(1e-6) == points
    steps = -torch.tensor(points, dtype=torch.float64).diff()
    # Constant gradient, so every Adam step is the step size: 6 full ones, then a tenth, a hundredth, a thousandth.
    expected = torch.tensor([1.0] * 6 + [0.1] * 4 + [0.01] * 4 + [0.001] * 2, dtype=torch.float64)
    torch.testing.assert_close(steps, expected, rtol=1e-4, atol=0)


@BOTH
def test_a_nan_objective_ends_the_descent(optimizer: MatchingOptimizer) -> None:
    evaluations = 0

    def objective(at: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        nonlocal evaluations
        evaluations += 1
        return (at[0] * torch.nan).sum(), torch.zeros(())

    descent = Descent([torch.ones(2, requires_grad=True)], objective, InputScale.of(None), 0.0)
    optimizer.run(descent, lambda fraction: None)
    assert descent.best is None
    assert evaluations < 100


def test_lbfgs_gives_up_a_descent_that_is_stuck() -> None:
    evaluations = 0

    def objective(at: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        nonlocal evaluations
        evaluations += 1
        return 1 + 1e-3 * at[0].cos().sum(), torch.zeros(())

    descent = Descent([torch.ones(2, dtype=torch.float64, requires_grad=True)], objective, InputScale.of(None), 0.0)
    LBFGS(iterations=1000).run(descent, lambda fraction: None)
    assert evaluations < 100
