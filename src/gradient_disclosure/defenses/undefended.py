"""No defense: shuffled epochs, the plain mean gradient; and what the censors share with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch import Callback
from torch import Tensor

from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.training.batches import BatchPlan, ShuffledBatches
from gradient_disclosure.training.defense import AuditRequest, mean_gradient


@dataclass(frozen=True)
class Undefended:
    """Plain training.

    Example:
        >>> Undefended().name
        'none'
    """

    @property
    def name(self) -> str:
        """Name in configs, tables and results."""
        return "none"

    def plan(self, members: Tensor, batch_size: int, seed: int) -> BatchPlan:
        """Each member once an epoch, shuffled."""
        return ShuffledBatches(members, batch_size, seed)

    def callbacks(self, request: AuditRequest) -> list[Callback]:
        """The audit, if wanted."""
        return request.plain()

    def summary(self, callbacks: Sequence[Callback]) -> Mapping[str, float | int | str | None]:
        """Nothing to report."""
        return {}

    def release(
        self, per_example: Sequence[Tensor], summary: Mapping[str, float | int | str | None], generator: torch.Generator
    ) -> ReleasedGradient:
        """The gradient of the mean loss."""
        return mean_gradient(per_example)
