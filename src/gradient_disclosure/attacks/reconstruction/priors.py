"""What an attacker believes about inputs before seeing any gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class InputPrior(Protocol):
    """A differentiable penalty for unlikely inputs."""

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Penalty, a scalar, for a dummy batch (B, *shape) scaled so that the value range is [-1, 1]."""
        ...


@dataclass(frozen=True)
class NoPrior:
    """Every input is as likely as any other.

    Example:
        >>> import torch
        >>> NoPrior()(torch.ones(1, 1, 8, 8)).item()
        0.0
    """

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Zero."""
        return coordinates.new_zeros(())


@dataclass(frozen=True)
class TotalVariation:
    """Neighboring pixels are alike: mean absolute difference along each image axis (Geiping et al. 2020).

    Inputs that are not images (C, H, W) have no neighbors, and their penalty is 0.

    Attributes:
        weight: factor in front of the penalty.

    Example:
        >>> import torch
        >>> TotalVariation(weight=0.5)(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
        0.5
    """

    weight: float

    def __call__(self, coordinates: Tensor) -> Tensor:
        """Weight times the mean absolute difference of vertical plus that of horizontal neighbors."""
        if coordinates.ndim != 4:
            return coordinates.new_zeros(())
        differences = (coordinates.diff(dim=axis).abs() for axis in (2, 3))
        return self.weight * sum((d.mean() for d in differences if d.numel()), start=coordinates.new_zeros(()))
