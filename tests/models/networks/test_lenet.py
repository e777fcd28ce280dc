from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from gradient_disclosure.data import DataSpec
from gradient_disclosure.models import lenet


def test_it_is_the_formula_of_the_papers():
    network = lenet(DataSpec(kind="image", shape=(3, 32, 32), num_classes=100))
    (k1, b1, k2, b2, k3, b3, weight, bias) = network.parameters()
    images = torch.rand(2, 3, 32, 32)
    hidden = torch.sigmoid(F.conv2d(images, k1, b1, padding=2, stride=2))
    hidden = torch.sigmoid(F.conv2d(hidden, k2, b2, padding=2, stride=2))
    hidden = torch.sigmoid(F.conv2d(hidden, k3, b3, padding=2, stride=1))
    assert hidden.shape == (2, 12, 8, 8)
    torch.testing.assert_close(network(images), hidden.reshape(2, 768) @ weight.T + bias)


def test_the_initialization_of_the_papers():
    torch.manual_seed(0)
    network = lenet(DataSpec(kind="image", shape=(1, 28, 28), num_classes=10), init_range=0.5)
    for parameter in network.parameters():
        assert parameter.abs().max() <= 0.5
    weights = torch.cat([parameter.flatten() for parameter in network.parameters()])
    # Uniform(-1/2, 1/2) has variance 1/12 and mean 0; with 13 426 draws the standard errors are 0.0006 and 0.0025.
    assert abs(weights.var().item() - 1 / 12) < 0.003
    assert abs(weights.mean().item()) < 0.0125


def test_without_a_range_it_is_pytorchs_own():
    torch.manual_seed(3)
    network = lenet(DataSpec(kind="image", shape=(1, 8, 8), num_classes=10))
    torch.manual_seed(3)
    assert torch.equal(network[0].weight, nn.Conv2d(1, 12, 5).weight)
