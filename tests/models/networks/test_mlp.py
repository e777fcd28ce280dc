from __future__ import annotations

import torch

from gradient_disclosure.data import DataSpec
from gradient_disclosure.models import mlp


def test_it_is_the_formula():
    network = mlp(DataSpec(kind="image", shape=(1, 2, 3), num_classes=4), hidden=(5, 7))
    images = torch.rand(8, 1, 2, 3)
    (w1, b1, w2, b2, w3, b3) = network.parameters()
    hidden = torch.tanh(torch.tanh(images.reshape(8, 6) @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(network(images), hidden @ w3.T + b3)


def test_without_hidden_layers_it_is_linear():
    network = mlp(DataSpec(kind="tabular", shape=(6,), num_classes=3), hidden=())
    assert [tuple(parameter.shape) for parameter in network.parameters()] == [(3, 6), (3,)]
