"""The LeNet of the gradient-reconstruction literature."""

from __future__ import annotations

from torch import nn

from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.models.networks.activations import make_activation
from gradient_disclosure.models.networks.compatibility import halved, require_images


def lenet(spec: DataSpec, *, activation: str = "sigmoid", init_range: float | None = None) -> nn.Sequential:
    """Three 5x5 convolutions of 12 channels with strides 2, 2, 1, then the logits; no pooling.

    The network of L. Zhu, Z. Liu and S. Han, "Deep leakage from gradients", NeurIPS 2019, in the three-layer form of
    B. Zhao, K. R. Mopuri and H. Bilen, "iDLG: Improved deep leakage from gradients", 2020.

    Args:
        spec: what the data look like; images of at least 8x8 pixels.
        activation: a key of `ACTIVATIONS`; the papers use sigmoid, which is twice differentiable.
        init_range: weights and biases are drawn uniformly from [-init_range, init_range]; the papers use 0.5, which
            reconstructs well and trains badly. None for PyTorch's default initialization.

    Returns:
        A network from inputs (B, C, H, W) to logits (B, num_classes).

    Raises:
        IncompatibleModelError: the data are no images, or too small ones.

    Example:
        >>> network = lenet(DataSpec(kind="image", shape=(3, 32, 32), num_classes=10))
        >>> network[-1].in_features  # 12 channels of 8x8, as in the papers
        768
    """
    channels, height, width = require_images(spec, "lenet")
    layers: list[nn.Module] = []
    for fan_in, stride in ((channels, 2), (12, 2), (12, 1)):
        layers += [nn.Conv2d(fan_in, 12, kernel_size=5, padding=2, stride=stride), make_activation(activation)]
    head = nn.Linear(12 * halved(height, 2) * halved(width, 2), spec.num_classes)
    network = nn.Sequential(*layers, nn.Flatten(), head)
    if init_range is not None:
        for parameter in network.parameters():
            nn.init.uniform_(parameter, -init_range, init_range)
    return network
