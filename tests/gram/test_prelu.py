from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradient_disclosure.gram.prelu import prelu_terms


def loss(output: Tensor) -> Tensor:
    """Uneven in the entries, with gradients that depend on the values."""
    weights = torch.cos(torch.arange(output[0].numel(), dtype=output.dtype) + 0.3).reshape(output.shape[1:])
    return ((output * weights) ** 2 + output).sum()


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 4),
    inner=st.lists(st.integers(1, 4), max_size=3),
    single=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_slopes(batch: int, inner: list[int], single: bool, wide: bool, seed: int) -> None:
    torch.manual_seed(seed)
    dtype = torch.float64 if wide else torch.float32
    module = nn.PReLU(1 if single or not inner else inner[0], dtype=dtype)
    x = torch.randn(batch, *inner, dtype=dtype)
    x[torch.rand_like(x) < 0.2] = 0.0
    output = module(x)
    e = torch.autograd.grad(loss(output), output)[0] if batch else torch.zeros_like(output)
    ((name, term),) = prelu_terms(module, x, e)
    assert (name, term.shape) == ("weight", tuple(module.weight.shape))
    expected = [torch.autograd.grad(loss(module(x[i : i + 1])), module.weight)[0] for i in range(batch)]
    stacked = torch.stack(expected) if expected else torch.zeros(0, len(module.weight), dtype=dtype)
    relative = 1e-10 if wide else 1e-4
    scale = float(stacked.abs().max()) if batch else 1.0
    torch.testing.assert_close(term.per_example(), stacked, rtol=0, atol=relative * scale)
    gram = stacked.double() @ stacked.double().T
    torch.testing.assert_close(term.gram(), gram, rtol=0, atol=relative * scale**2 * stacked.shape[1])


def test_frozen_slopes_have_no_term() -> None:
    assert list(prelu_terms(nn.PReLU().requires_grad_(False), torch.ones(2, 3), torch.ones(2, 3))) == []


def test_an_empty_axis_contributes_nothing() -> None:
    ((_, term),) = prelu_terms(nn.PReLU(3), torch.zeros(2, 3, 0), torch.zeros(2, 3, 0))
    assert term.per_example().tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("channels", [1, 3])
def test_a_layer_wise_check_of_the_channel_axis(channels: int) -> None:
    x = -torch.arange(1.0, 13.0).reshape(1, 3, 4)
    ((_, term),) = prelu_terms(nn.PReLU(channels), x, torch.ones_like(x))
    assert term.per_example().tolist() == ([[-78.0]] if channels == 1 else [[-10.0, -26.0, -42.0]])
