from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import ReleasedGradient
from gradient_disclosure.attacks.reconstruction.labels import AnalyticLabel, KnownLabels

from .cases import clipped, convolutional, digits, linear, plain_gradient


def recovered(module: nn.Module, gradients: tuple[Tensor, ...], classes: int) -> int:
    label = AnalyticLabel().recover(module, ReleasedGradient(gradients, batch_size=1), classes)
    assert label is not None
    assert label.shape == (1,)
    return int(label)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_the_label_is_always_right_for_a_single_example(activation: type[nn.Module]) -> None:
    module = convolutional(activation)
    inputs, labels = digits(100)
    for i in range(100):
        gradients = plain_gradient(module, inputs[i : i + 1], labels[i : i + 1])
        assert recovered(module, gradients, 10) == labels[i]
        assert recovered(module, clipped(gradients, 0.01), 10) == labels[i]


def test_the_label_is_right_after_training_and_without_a_bias() -> None:
    inputs, labels = digits(100)
    module = nn.Sequential(nn.Flatten(), linear(64, 32), nn.Tanh(), linear(32, 10, bias=False, seed=1))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), labels).backward()
        optimizer.step()
    for i in range(100):
        assert recovered(module, plain_gradient(module, inputs[i : i + 1], labels[i : i + 1]), 10) == labels[i]


def test_two_classes_need_the_bias() -> None:
    inputs, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    with_bias, without = linear(2, 2), linear(2, 2, bias=False)
    assert recovered(with_bias, plain_gradient(with_bias, inputs, labels), 2) == 1
    with pytest.raises(AttackInputError, match="no trainable linear layer with 2 outputs and a bias"):
        recovered(without, plain_gradient(without, inputs, labels), 2)


def test_a_network_without_an_output_layer_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    inputs, labels = digits(1)
    with pytest.raises(AttackInputError, match=r"no trainable linear layer with 10 outputs\. Use DLG, or pass labels="):
        recovered(module, plain_gradient(module, inputs, labels), 10)


def test_a_larger_batch_is_refused() -> None:
    layer = linear(2, 3)
    released = ReleasedGradient((torch.ones(3, 2), torch.ones(3)), batch_size=2)
    with pytest.raises(AttackInputError, match="single example, but the released batch has 2"):
        AnalyticLabel().recover(layer, released, 3)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0]), r"int64 of shape \(2,\)"),
        (torch.tensor([0.0, 1.0]), "not torch.float32"),
        (torch.tensor([0, 3]), r"lie in \[0, 3\), but they are \[0, 3\]"),
        (torch.tensor([-1, 0]), r"lie in \[0, 3\)"),
    ],
)
def test_wrong_labels_are_refused(labels: Tensor, message: str) -> None:
    with pytest.raises(AttackInputError, match=message):
        KnownLabels(labels).recover(linear(1, 3), ReleasedGradient((), batch_size=2), 3)
