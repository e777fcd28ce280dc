from __future__ import annotations

import pytest
import torch
from torch import nn

from gradient_disclosure.models import predict_logits


class Recorder(nn.Module):
    """A linear layer that remembers the size, the mode and the gradient mode of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.dropout = nn.Dropout(0.9)
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls.append((len(inputs), self.dropout.training, torch.is_grad_enabled()))
        return self.dropout(self.linear(inputs))


@pytest.mark.parametrize(("batch_size", "sizes"), [(3, [3, 3, 1]), (7, [7]), (512, [7])])
def test_every_row_in_order_whatever_the_batches(batch_size: int, sizes: list[int]):
    module, inputs = Recorder(), torch.rand(7, 4)
    expected = inputs @ module.linear.weight.T + module.linear.bias
    logits = predict_logits(module, inputs, batch_size=batch_size)
    torch.testing.assert_close(logits, expected)
    assert module.calls == [(size, False, False) for size in sizes]
    assert not logits.requires_grad


def test_each_part_gets_its_own_mode_back():
    module = Recorder().train()
    module.linear.eval()
    predict_logits(module, torch.rand(2, 4))
    assert (module.training, module.linear.training, module.dropout.training) == (True, False, True)
    assert torch.is_grad_enabled()


def test_the_modes_come_back_after_an_error_too():
    module = Recorder().train()
    with pytest.raises(RuntimeError):
        predict_logits(module, torch.rand(2, 5))
    assert module.dropout.training
    assert torch.is_grad_enabled()


def test_no_inputs_give_no_logits():
    assert predict_logits(Recorder(), torch.rand(0, 4)).shape == (0, 3)
