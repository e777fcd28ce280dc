from __future__ import annotations

import pytest
import torch

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.scale import InputScale


def test_the_value_range_becomes_the_cube() -> None:
    scale = InputScale.of((-2.0, 6.0))
    assert scale.to_inputs(torch.tensor([-1.0, 0.0, 1.0])).tolist() == [-2.0, 2.0, 6.0]
    assert scale.clamp(torch.tensor([-3.0, 0.5, 3.0])).tolist() == [-1.0, 0.5, 1.0]


def test_without_a_range_nothing_moves() -> None:
    scale = InputScale.of(None)
    values = torch.tensor([-30.0, 40.0])
    assert torch.equal(scale.to_inputs(scale.clamp(values)), values)


@pytest.mark.parametrize("value_range", [(1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)])
def test_an_empty_or_infinite_range_is_refused(value_range: tuple[float, float]) -> None:
    with pytest.raises(AttackInputError, match="value_range must be"):
        InputScale.of(value_range)
