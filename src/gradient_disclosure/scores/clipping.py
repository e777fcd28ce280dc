"""What DP-SGD releases, on the scale of gradient uniqueness (this project's own extension of the papers)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradient_disclosure.scores.bits import Sampling


@dataclass(frozen=True)
class GaussianMechanism:
    """Each gradient clipped to ``clip_norm``, noise of deviation ``noise_multiplier · clip_norm`` added to their sum.

    Example:
        >>> import torch
        >>> mechanism = GaussianMechanism(clip_norm=1.0, noise_multiplier=2.0)
        >>> mechanism.clipped(torch.tensor([[4.0]])).item(), mechanism.damping(Sampling(rate=0.5, prior=0.5))
        (1.0, 5.333333333333333)
    """

    clip_norm: float
    noise_multiplier: float

    def clipped(self, gram: Tensor) -> Tensor:
        """Gram (B, B) of the clipped gradients: ``diag(s) K diag(s)`` with ``s_i = min(1, C/‖g_i‖)``."""
        norms = gram.diagonal().clamp(min=0.0).sqrt()
        scale = torch.where(norms > self.clip_norm, self.clip_norm / norms, torch.ones_like(norms))
        return scale[:, None] * gram * scale[None, :]

    def damping(self, sampling: Sampling) -> float:
        """λ in batch units that the real noise amounts to: (σC)² / (1 − p)."""
        return (self.noise_multiplier * self.clip_norm) ** 2 / (1.0 - sampling.inclusion)
