"""Where a restart begins; always from the given generator, never from global random state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Initialization(Protocol):
    """Draws the first dummy batch."""

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Float64 tensor of that shape on the generator's device, in coordinates whose value range is [-1, 1]."""
        ...


@dataclass(frozen=True)
class NormalInitialization:
    """Independent normal pixels around the middle of the value range.

    Attributes:
        std: standard deviation; 1 is half the value range.

    Example:
        >>> NormalInitialization()((1, 2), torch.Generator().manual_seed(0)).shape
        torch.Size([1, 2])
    """

    std: float = 1.0

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws N(0, std²)."""
        return self.std * torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)


@dataclass(frozen=True)
class UniformInitialization:
    """Independent pixels, uniform over the value range.

    Example:
        >>> bool(UniformInitialization()((9, 9), torch.Generator().manual_seed(0)).abs().max() <= 1)
        True
    """

    def __call__(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Draws U(-1, 1)."""
        return 2 * torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device) - 1
