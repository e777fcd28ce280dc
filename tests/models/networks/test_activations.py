from __future__ import annotations

import pytest
import torch

from gradient_disclosure.models.networks.activations import ACTIVATIONS, make_activation

FORMULAS = {
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "relu": lambda x: torch.where(x > 0, x, 0),
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": lambda x: (torch.exp(2 * x) - 1) / (torch.exp(2 * x) + 1),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_is_its_formula_and_leaves_its_input_alone(name: str):
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    before = x.clone()
    torch.testing.assert_close(make_activation(name)(x), FORMULAS[name](x))
    assert torch.equal(x, before)


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="unknown activation 'swish'; known are gelu, relu, sigmoid, silu, tanh"):
        make_activation("swish")
