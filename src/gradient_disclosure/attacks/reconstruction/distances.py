"""How far the gradient of a dummy batch is from the released one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class GradientDistance(Protocol):
    """A differentiable distance between two flattened gradients."""

    def __call__(self, dummy: Tensor, released: Tensor) -> Tensor:
        """Distance of the dummy's gradient (P,) from the released gradient (P,): a scalar, 0 for equal gradients."""
        ...


@dataclass(frozen=True)
class SquaredL2:
    """Squared Euclidean distance, as a fraction of the released gradient's squared norm.

    The distance of DLG (Zhu et al. 2019, "Deep leakage from gradients"). The division does not move the minimum; it
    makes tolerances mean the same at initialization and at the end of training, where gradients are small.

    Example:
        >>> SquaredL2()(torch.tensor([3.0, 0.0]), torch.tensor([2.0, 0.0])).item()
        0.25
    """

    def __call__(self, dummy: Tensor, released: Tensor) -> Tensor:
        """‖dummy − released‖² / ‖released‖² for gradients (P,)."""
        return (dummy - released).square().sum() / released.square().sum()


@dataclass(frozen=True)
class CosineDistance:
    """One minus the cosine of the angle (Geiping et al. 2020, "Inverting gradients"): in [0, 2], blind to the norm.

    Example:
        >>> CosineDistance()(torch.tensor([5.0, 0.0]), torch.tensor([2.0, 0.0])).item()
        0.0
    """

    def __call__(self, dummy: Tensor, released: Tensor) -> Tensor:
        """1 − ⟨dummy, released⟩ / (‖dummy‖ ‖released‖) for gradients (P,); 1 where the dummy's is zero."""
        norms = torch.linalg.vector_norm(dummy) * torch.linalg.vector_norm(released)
        cosine: Tensor = dummy @ released / norms.clamp(min=torch.finfo(norms.dtype).tiny)
        return 1 - cosine
