"""A convolutional network small enough for many shadow models on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.models.networks.activations import make_activation
from gradient_disclosure.models.networks.compatibility import halved, require_images


def small_cnn(
    spec: DataSpec, *, channels: Sequence[int] = (16, 32), hidden: int = 64, activation: str = "tanh"
) -> nn.Sequential:
    """3x3 convolutions of stride 2, one hidden fully connected layer, logits.

    Strides take the place of max-pooling, and the default activation is smooth: gradient reconstruction needs second
    derivatives, and a kink in the network would make a failed attack look like privacy.

    Args:
        spec: what the data look like; images of at least 4x4 pixels.
        channels: output channels of each convolution.
        hidden: width of the fully connected layer before the logits.
        activation: a key of `ACTIVATIONS`.

    Returns:
        A network from inputs (B, C, H, W) to logits (B, num_classes), with PyTorch's default initialization.

    Raises:
        IncompatibleModelError: the data are no images, or too small ones.

    Example:
        >>> network = small_cnn(DataSpec(kind="image", shape=(1, 8, 8), num_classes=10))
        >>> sum(parameter.numel() for parameter in network.parameters())
        13706
    """
    in_channels, height, width = require_images(spec, "small_cnn")
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise((in_channels, *channels)):
        layers += [nn.Conv2d(fan_in, fan_out, kernel_size=3, stride=2, padding=1), make_activation(activation)]
    features = (in_channels, *channels)[-1] * halved(height, len(channels)) * halved(width, len(channels))
    layers += [nn.Flatten(), nn.Linear(features, hidden), make_activation(activation)]
    return nn.Sequential(*layers, nn.Linear(hidden, spec.num_classes))
