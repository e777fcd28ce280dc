"""Weights at named moments of training, for attacks that need the model as it was then."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

Weights = dict[str, Tensor]


class WeightSnapshots(Callback):
    """Keeps a copy of the trainable parameters and buffers before the steps asked for.

    Args:
        moments: name → number of optimizer steps done when the copy is taken; 0 is the initialization. A moment that
            the training never reaches has no snapshot.

    Example:
        >>> WeightSnapshots({"init": 0}).snapshots
        {}
    """

    def __init__(self, moments: Mapping[str, int]) -> None:
        self.moments = dict(moments)
        self.snapshots: dict[str, Weights] = {}

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Copy the weights if this is a moment asked for."""
        for name, step in self.moments.items():
            if step == trainer.global_step and name not in self.snapshots:
                self.snapshots[name] = copy_of_weights(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Tensors in plain dicts."""
        return {"snapshots": self.snapshots}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        self.snapshots = state_dict["snapshots"]


def copy_of_weights(module: LightningModule) -> Weights:
    """A detached copy of the module's state, on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in module.state_dict().items()}
