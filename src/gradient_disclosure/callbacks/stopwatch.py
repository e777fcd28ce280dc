"""Time spent training, also across a kill and a resume."""

from __future__ import annotations

import time
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Stopwatch(Callback):
    """Seconds from the start to the end of training; time lost to a kill since the last checkpoint counts again.

    Example:
        >>> Stopwatch().seconds
        0.0
    """

    def __init__(self) -> None:
        self._before = 0.0
        self._started: float | None = None

    @property
    def seconds(self) -> float:
        """Wall time in seconds."""
        return self._before + (0.0 if self._started is None else time.perf_counter() - self._started)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start."""
        self._started = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop."""
        self._before, self._started = self.seconds, None

    def state_dict(self) -> dict[str, Any]:
        """The time so far."""
        return {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from the time of the checkpoint."""
        self._before = state_dict["seconds"]
