"""The shared list of modules whose Gram is checked against one-example-at-a-time autograd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A module and the shape of one input."""

    name: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


class Twice(nn.Module):
    """A layer used twice, at different depths: its two gradients add before the inner product."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Shared(nn.Module):
    """Two layers that share one weight but not their bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.sin(self.first(x)))


class Unused(nn.Module):
    """A layer that takes no part in the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x)


def frozen_first() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def frozen_batch_norm() -> nn.Module:
    norm = nn.BatchNorm2d(3)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2.0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), norm.eval())


CASES = (
    Case("linear", lambda: nn.Linear(5, 3), (5,)),
    Case("linear no bias", lambda: nn.Linear(5, 3, bias=False), (5,)),
    Case("linear on a sequence", lambda: nn.Linear(5, 3), (7, 5)),
    Case("linear on a grid", lambda: nn.Linear(5, 3), (2, 3, 5)),
    Case("linear, many positions", lambda: nn.Linear(2, 2), (40, 2)),
    Case("conv1d", lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (3, 9)),
    Case("conv2d", lambda: nn.Conv2d(2, 5, 3), (2, 6, 7)),
    Case("conv2d stride, dilation, groups", lambda: nn.Conv2d(4, 6, 3, 2, 2, 2, groups=2), (4, 9, 8)),
    Case("conv2d depthwise", lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 5, 5)),
    Case("conv2d same", lambda: nn.Conv2d(2, 3, 4, padding="same"), (2, 6, 6)),
    Case("conv2d valid", lambda: nn.Conv2d(2, 3, (2, 3), padding="valid"), (2, 6, 6)),
    Case("conv2d reflect", lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (2, 6, 6)),
    Case("conv2d replicate", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 4, 6)),
    Case("conv2d circular", lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 4, 6)),
    Case("conv3d", lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (2, 3, 4, 3)),
    Case("layer norm", lambda: nn.LayerNorm(6), (6,)),
    Case("layer norm over two axes", lambda: nn.LayerNorm((4, 6)), (3, 4, 6)),
    Case("rms norm", lambda: nn.RMSNorm(6), (5, 6)),
    Case("group norm", lambda: nn.GroupNorm(2, 4), (4, 3, 3)),
    Case("instance norm", lambda: nn.InstanceNorm2d(3, affine=True), (3, 4, 4)),
    Case("instance norm, running", lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True), (3, 5)),
    Case("frozen batch norm", frozen_batch_norm, (2, 6, 6)),
    Case("used twice", lambda: Twice(nn.Linear(5, 5)), (5,)),
    Case("used twice on a sequence", lambda: Twice(nn.Linear(4, 4)), (6, 4)),
    Case("convolution used twice", lambda: Twice(nn.Conv2d(2, 2, 3, padding=1)), (2, 4, 4)),
    Case("norm used twice", lambda: Twice(nn.LayerNorm(5)), (3, 5)),
    Case("shared weight", Shared, (5,)),
    Case("unused layer", Unused, (4,)),
    Case("frozen parameters", frozen_first, (4,)),
    Case(
        "in-place activation",
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)),
        (4,),
    ),
    Case(
        "in-place activation on a view",
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)),
        (5, 4),
    ),
    Case(
        "in-place activation after instance norm",
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.ReLU(inplace=True)),
        (2, 6, 6),
    ),
    Case(
        "small cnn",
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 16, 5)
        ),
        (1, 4, 4),
    ),
)
