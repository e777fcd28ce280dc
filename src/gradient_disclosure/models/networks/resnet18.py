"""ResNet-18 with GroupNorm, for training with per-example gradients."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, ResNet

from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.models.networks.compatibility import require_images

# From this side on the stem is the ImageNet one; below, it would leave too few pixels for the four stages.
IMAGENET_STEM_SIDE = 64


class OutOfPlaceBlock(BasicBlock):  # type: ignore[misc]  # torchvision has no type hints for mypy
    """torchvision's residual block without in-place operations, which hooks on module outputs do not survive.

    Example:
        >>> import torch
        >>> OutOfPlaceBlock(4, 4)(torch.zeros(2, 4, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, planes, H / stride, W / stride)."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(nn.functional.relu(self.bn1(self.conv1(x)))))
        return nn.functional.relu(out + identity)


def resnet18(spec: DataSpec, *, groups: int = 32) -> nn.Module:
    """ResNet-18 with GroupNorm in place of BatchNorm, which would mix the examples of a batch.

    K. He, X. Zhang, S. Ren and J. Sun, "Deep residual learning for image recognition", CVPR 2016; Y. Wu and K. He,
    "Group normalization", ECCV 2018. Images below 64 pixels get a 3x3 stem without max-pooling.

    Args:
        spec: what the data look like; images of at least 8x8 pixels.
        groups: groups of each GroupNorm; must divide 64.

    Returns:
        A network from inputs (B, C, H, W) to logits (B, num_classes), with torchvision's initialization.

    Raises:
        IncompatibleModelError: the data are no images, or too small ones.
        ValueError: `groups` does not divide 64.

    Example:
        >>> network = resnet18(DataSpec(kind="image", shape=(3, 32, 32), num_classes=10))
        >>> sum(parameter.numel() for parameter in network.parameters())
        11173962
    """
    channels, height, width = require_images(spec, "resnet18")
    if groups < 1 or 64 % groups:
        raise ValueError(f"resnet18: groups={groups} must divide 64, the number of channels of the first stage.")
    network: nn.Module = ResNet(
        OutOfPlaceBlock, [2, 2, 2, 2], spec.num_classes, norm_layer=partial(nn.GroupNorm, groups)
    )
    network.conv1 = _stem(channels, min(height, width))
    if min(height, width) < IMAGENET_STEM_SIDE:
        network.maxpool = nn.Identity()
    for module in network.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False
    return network


def _stem(channels: int, side: int) -> nn.Conv2d:
    kernel, stride = (7, 2) if side >= IMAGENET_STEM_SIDE else (3, 1)
    stem = nn.Conv2d(channels, 64, kernel_size=kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's ResNet does
    return stem
