from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from gradient_disclosure.data import DataSpec
from gradient_disclosure.models import small_cnn

DIGITS = DataSpec(kind="image", shape=(1, 8, 8), num_classes=10)


def test_its_size_on_digits_by_hand():
    count = sum(parameter.numel() for parameter in small_cnn(DIGITS).parameters())
    assert count == (16 * 9 + 16) + (32 * 16 * 9 + 32) + (64 * 32 * 2 * 2 + 64) + (10 * 64 + 10)
    assert 10_000 <= count <= 20_000


def test_it_is_the_formula():
    network = small_cnn(DataSpec(kind="image", shape=(2, 9, 12), num_classes=3), channels=(4,), hidden=6)
    (kernel, bias, w1, b1, w2, b2) = network.parameters()
    images = torch.rand(5, 2, 9, 12)
    features = torch.tanh(F.conv2d(images, kernel, bias, stride=2, padding=1))
    assert features.shape == (5, 4, 5, 6)
    expected = torch.tanh(features.reshape(5, 120) @ w1.T + b1) @ w2.T + b2
    torch.testing.assert_close(network(images), expected)


def test_it_has_no_pooling():
    kinds = {type(module) for module in small_cnn(DIGITS).modules()}
    assert kinds == {nn.Sequential, nn.Conv2d, nn.Tanh, nn.Flatten, nn.Linear}
