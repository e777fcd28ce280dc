from __future__ import annotations

import pytest
import torch
from torch import nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import gradient_of_batch

from .cases import convolutional, digits, linear, plain_gradient


def test_gradient_is_that_of_backward() -> None:
    module = convolutional(nn.GELU)
    inputs, labels = digits(3)
    for ours, theirs in zip(
        gradient_of_batch(module, inputs, labels), plain_gradient(module, inputs, labels), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_gradient_of_a_linear_layer_in_closed_form() -> None:
    layer = linear(2, 3).double()
    inputs, labels = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64), torch.tensor([2, 0])
    error = layer(inputs).softmax(1) - nn.functional.one_hot(labels, 3)
    weight, bias = gradient_of_batch(layer, inputs, labels)
    torch.testing.assert_close(weight, error.T @ inputs / 2)
    torch.testing.assert_close(bias, error.mean(0))


def test_hard_labels_are_one_hot_soft_labels() -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(2)
    hard = gradient_of_batch(module, inputs, labels)
    soft = gradient_of_batch(module, inputs, nn.functional.one_hot(labels, 10).float())
    for a, b in zip(hard, soft, strict=True):
        torch.testing.assert_close(a, b)


def test_modes_are_restored_and_dropout_and_batch_statistics_are_off() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    module.train()
    module[1].eval()
    running_mean = module[1].running_mean.clone()
    before = torch.get_rng_state()
    first = gradient_of_batch(module, torch.ones(3, 4), torch.tensor([0, 1, 1]))
    second = gradient_of_batch(module, torch.ones(3, 4), torch.tensor([0, 1, 1]))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert [submodule.training for submodule in module.modules()] == [True, True, False, True, True]
    assert torch.equal(module[1].running_mean, running_mean)
    assert torch.equal(torch.get_rng_state(), before)


def test_modes_are_restored_after_an_error() -> None:
    module = linear(4, 2).train()
    with pytest.raises(RuntimeError):
        gradient_of_batch(module, torch.ones(1, 3), torch.tensor([0]))
    assert module.training


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_where_a_trainer_has_turned_autograd_off(context: type[torch.no_grad]) -> None:
    layer = linear(2, 3)
    with context():
        weight, _ = gradient_of_batch(layer, torch.ones(1, 2), torch.tensor([0]))
    assert bool(weight.any())


def test_create_graph_allows_a_second_derivative() -> None:
    layer = linear(2, 3).double()

    def bias_gradient(inputs: torch.Tensor) -> torch.Tensor:
        return gradient_of_batch(layer, inputs, torch.tensor([0]), create_graph=True)[1]

    assert torch.autograd.gradcheck(bias_gradient, torch.ones(1, 2, dtype=torch.float64, requires_grad=True))


def test_frozen_parameters_are_left_out_and_unused_ones_are_zero() -> None:
    module = nn.ModuleDict({"used": nn.Linear(2, 3), "unused": nn.Linear(5, 5)})
    module.forward = lambda inputs: module["used"](inputs)  # type: ignore[method-assign]
    module["used"].bias.requires_grad_(False)
    gradients = gradient_of_batch(module, torch.ones(1, 2), torch.tensor([0]))
    assert [tuple(g.shape) for g in gradients] == [(3, 2), (5, 5), (5,)]
    assert not gradients[1].any()
    with pytest.raises(AttackInputError, match="no trainable parameter"):
        gradient_of_batch(linear(2, 3).requires_grad_(False), torch.ones(1, 2), torch.tensor([0]))
