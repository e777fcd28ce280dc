from __future__ import annotations

import math

import torch

from gradient_disclosure.attacks.reconstruction.descent import Descent
from gradient_disclosure.attacks.reconstruction.scale import InputScale


def descent_on(x: torch.Tensor, tolerance: float = 0.0) -> Descent:
    """Distance x², penalty 1; NaN for negative x."""
    return Descent(
        [x],
        lambda at: (at[0].square().sum() + 0 * at[0].sqrt().sum(), torch.ones(())),
        InputScale.of((-1.0, 1.0)),
        tolerance,
    )


def test_the_best_point_is_kept_and_nan_never_is() -> None:
    x = torch.tensor([2.0], requires_grad=True)
    descent = descent_on(x, tolerance=1.0)
    for value, best in ((2.0, 2.0), (0.5, 0.5), (-1.0, 0.5), (1.5, 0.5)):
        x.data.fill_(value)
        descent.evaluate()
        assert descent.best is not None
        assert descent.best[0].item() == best
    assert (descent.loss, descent.distance) == (1.25, 0.25)
    assert descent.solved


def test_a_descent_that_is_nan_from_the_start_has_no_best_point() -> None:
    descent = descent_on(torch.tensor([-1.0], requires_grad=True))
    assert math.isnan(descent.evaluate())
    assert descent.best is None
    assert descent.loss == math.inf
    assert not descent.solved


def test_projection_bounds_the_inputs_only() -> None:
    inputs, labels = torch.tensor([5.0], requires_grad=True), torch.tensor([5.0], requires_grad=True)
    Descent([inputs, labels], lambda at: (at[0], at[1]), InputScale.of((0.0, 1.0)), 0.0).project()
    assert (inputs.item(), labels.item()) == (1.0, 5.0)
