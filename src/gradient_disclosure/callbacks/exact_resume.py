"""Random state and epoch counters across a kill and a resume, so that a run goes on bit by bit."""

from __future__ import annotations

import random
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.loader import BatchLoader


class ExactResume(Callback):
    """Makes ``Trainer.fit(..., ckpt_path=...)`` end with bitwise the weights of a run that was never interrupted.

    The training steps get a stream of torch's random numbers of their own (on the CPU and on the training device): its
    state is kept at the end of a step, written to checkpoints and put back at the start of the next step. So what
    validation, loaders or other callbacks draw between two steps never reaches the training, resumed or not. Python's
    and numpy's generators are stored with a checkpoint and put back at the first step after a resume. The saved state
    holds tensors and numbers only and passes ``torch.load(weights_only=True)``.

    It needs a `BatchLoader`, whose batches do not depend on that stream. Checkpoints may be taken after any step, or at
    the end of an epoch or of validation. After one of an epoch's last step, Lightning does not catch up on that epoch's
    validation and ``on_train_epoch_end``; one saved at the end of the epoch has them behind it.

    Raises:
        UnsupportedTrainingError: at the start of training, with another loader or on several devices.

    Example:
        >>> callback = ExactResume()
        >>> trainer = pl.Trainer(callbacks=[callback], logger=False, accelerator="cpu")
        >>> sorted(callback.state_dict())
        ['numpy', 'python', 'torch']
    """

    def __init__(self) -> None:
        self._device = torch.device("cpu")
        self._kept: dict[str, Tensor] | None = None  # torch's state between two steps; None within a step
        self._restored: dict[str, Any] | None = None  # state of a checkpoint until the first step after a resume

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse what cannot be resumed exactly."""
        if not isinstance(trainer.train_dataloader, BatchLoader):
            raise UnsupportedTrainingError(
                f"ExactResume cannot keep its promise with a {type(trainer.train_dataloader).__name__}: after a resume "
                "it would give other batches. Train from a gradient_disclosure.training.loader.BatchLoader, or leave "
                "ExactResume out."
            )
        if trainer.world_size > 1:
            raise UnsupportedTrainingError(
                f"ExactResume keeps the random state of one process, but training runs in {trainer.world_size}: use "
                "Trainer(devices=1)."
            )
        self._device = pl_module.device
        if self._restored is None:
            self._kept = None  # what an earlier training left behind is not for this one

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Give the step the random state that the last one left behind."""
        if self._restored is not None:
            _set_python_and_numpy(self._restored)
            self._restored = None
        if self._kept is not None:
            _set_torch(self._kept, self._device)
            self._kept = None
        progress = trainer.fit_loop.epoch_progress
        if progress.current.ready == trainer.current_epoch:
            # Resumed from a checkpoint of an epoch's last step, Lightning never counts the next epoch as begun. A
            # checkpoint within it would look like one between two epochs, and a second resume would repeat an epoch.
            progress.increment_ready()
            progress.increment_started()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep torch's random state for the next step."""
        self._kept = _get_torch(self._device)

    def state_dict(self) -> dict[str, Any]:
        """The random state that the next step is to start from."""
        if self._restored is not None:
            return self._restored
        return {"torch": self._kept or _get_torch(self._device), **_get_python_and_numpy()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state of a checkpoint; it comes into force at the first step."""
        self._restored, self._kept = state_dict, state_dict["torch"]


def _get_torch(device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states[device.type] = torch.get_device_module(device).get_rng_state()
    return states


def _set_torch(states: dict[str, Tensor], device: torch.device) -> None:
    if device.type not in states:
        raise UnsupportedTrainingError(
            f"The checkpoint was written on {' and '.join(states)}, but training goes on on {device.type}, whose "
            "random state it does not hold. Resume on the same kind of device, or leave ExactResume out."
        )
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[device.type])


def _get_python_and_numpy() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    _, key, position, has_gauss, cached = np.random.get_state()
    return {
        "python": (version, torch.tensor(words, dtype=torch.int64), gauss),
        "numpy": (torch.from_numpy(np.asarray(key, dtype=np.int64)), int(position), int(has_gauss), float(cached)),
    }


def _set_python_and_numpy(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    key, position, has_gauss, cached = state["numpy"]
    np.random.set_state(("MT19937", key.numpy().astype(np.uint32), position, has_gauss, cached))
