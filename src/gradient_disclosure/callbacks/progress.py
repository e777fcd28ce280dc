"""Tells how far a training is; drawing it is somebody else's work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class StepReporter(Callback):
    """Calls a function with (steps done, steps in all) after each step.

    Args:
        report: must return quickly; Lightning's own bars redraw at each step, which costs more than a small step.

    Example:
        >>> reporter = StepReporter(print)
    """

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self._report = report

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report."""
        self._report(trainer.global_step, int(trainer.estimated_stepping_batches))
