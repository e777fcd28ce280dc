"""How a data set is audited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure.scores.gnq import Damping

Losses = Callable[[nn.Module, Any], Tensor]
"""(module, batch) → each example's own loss, (B,)."""

ExampleIds = Callable[[Any], Tensor]
"""Batch → (B,) int64 ids, each example's own."""


def classification_losses(module: nn.Module, batch: Any) -> Tensor:
    """Cross entropy (B,) of each example of a batch (inputs, labels, ...)."""
    return F.cross_entropy(module(batch[0]), batch[1], reduction="none")


def third_of_batch(batch: Any) -> Tensor:
    """The index of batches (inputs, labels, index)."""
    index: Tensor = torch.as_tensor(batch[2])
    return index


@dataclass(frozen=True)
class DatasetAuditSettings:
    """How a data set is audited.

    Attributes:
        damping: λ in units of the sum over the data set; 1/p times that of a batch, p = b/N. Relative: times the mean
            squared gradient norm of the data set.
        tile: examples along one side of a tile. A tile is the unit of work, of memory (N · tile · 8 bytes) and of what
            a kill may cost.
        losses: each example's own loss.
        example_ids: batch → ids.
        exclude: patterns of parameter names to leave out on purpose (coverage falls below 1).

    Example:
        >>> DatasetAuditSettings(Damping(0.5), tile=100).tile
        100
    """

    damping: Damping = field(default_factory=lambda: Damping(1.0))
    tile: int = 2000
    losses: Losses = classification_losses
    example_ids: ExampleIds = third_of_batch
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise ValueError(f"a tile must hold at least 1 example, got {self.tile}")
