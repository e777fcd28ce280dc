"""A multi-layer perceptron, for tabular data and for images as flat vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.models.networks.activations import make_activation


def mlp(spec: DataSpec, *, hidden: Sequence[int] = (128,), activation: str = "tanh") -> nn.Sequential:
    """Fully connected layers with an activation between each two.

    Args:
        spec: what the data look like; any shape.
        hidden: width of each hidden layer; empty for a linear classifier.
        activation: a key of `ACTIVATIONS`.

    Returns:
        A network from inputs (B, *shape) to logits (B, num_classes), with PyTorch's default initialization.

    Example:
        >>> network = mlp(DataSpec(kind="tabular", shape=(108,), num_classes=2))
        >>> sum(parameter.numel() for parameter in network.parameters())
        14210
    """
    widths = (prod(spec.shape), *hidden)
    layers: list[nn.Module] = [nn.Flatten()]
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), make_activation(activation)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], spec.num_classes))
