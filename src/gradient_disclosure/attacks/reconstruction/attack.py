"""What a reconstruction attack is, and what it hands back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient

Progress = Callable[[float], None]

UNKNOWN_LABEL = -1


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack made of a released gradient; the truth had no part in it.

    Attributes:
        inputs: (B, *shape) float32 on the CPU, within the value range; all mid-range where the attack diverged.
        labels: (B,) int64 on the CPU; -1 where the attack diverged before it knew them.
        loss: the attacker's own loss at ``inputs`` before they were moved into the value range; infinite where the
            attack diverged.
        restart_losses: the best loss of each restart that was run; infinite for a discarded one.
        diverged: no restart ever had a finite loss.

    Example:
        >>> failed = Reconstruction(torch.full((1, 2), 0.5), torch.tensor([-1]), float("inf"), (float("inf"),), True)
        >>> failed.diverged
        True
    """

    inputs: Tensor
    labels: Tensor
    loss: float
    restart_losses: tuple[float, ...]
    diverged: bool


class ReconstructionAttack(Protocol):
    """Anything that turns a released gradient into inputs."""

    @property
    def name(self) -> str:
        """Name in metric keys, e.g. "dlg"."""
        ...

    def reconstruct(
        self,
        module: nn.Module,
        released: ReleasedGradient,
        *,
        shape: tuple[int, ...],
        num_classes: int,
        value_range: tuple[float, float] | None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Reconstructs the batch behind a released gradient; see GradientMatching.reconstruct."""
        ...
