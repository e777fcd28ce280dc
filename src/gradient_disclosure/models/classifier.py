"""The one LightningModule of the project: a network, a loss and an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torchmetrics.classification import MulticlassAccuracy

from gradient_disclosure.errors import InvalidBatchError, NonFiniteGradientError

Batch = tuple[Tensor, Tensor, Tensor]


class ClassifierModule(LightningModule):
    """Trains a classifier on batches (inputs, labels, index) with the mean cross entropy.

    Logs `train/loss` (every `log_every_n_steps` of the trainer), `val/loss`, `val/accuracy`, `test/loss` and
    `test/accuracy`. The index of an example is not used here; audits and defenses read it from the batch.

    Args:
        network: from inputs (B, *shape) to logits (B, num_classes).
        optimizer: makes the optimizer of the trainable parameters, e.g. `functools.partial(torch.optim.SGD, lr=0.1)`.
        num_classes: number of labels.

    Example:
        >>> from functools import partial
        >>> module = ClassifierModule(nn.Linear(4, 3), optimizer=partial(torch.optim.SGD, lr=0.1), num_classes=3)
        >>> module(torch.zeros(2, 4)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        num_classes: int,
    ) -> None:
        super().__init__()
        self.network = network
        self.make_optimizer = optimizer
        self.val_accuracy = MulticlassAccuracy(num_classes, average="micro")
        self.test_accuracy = MulticlassAccuracy(num_classes, average="micro")

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, *shape)."""
        logits: Tensor = self.network(inputs)
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Mean cross entropy of one batch, a scalar; 0 with a graph for the empty batches of Poisson sampling.

        Raises:
            InvalidBatchError: the batch is not (inputs, labels, index).
            NonFiniteGradientError: the loss is NaN or infinite.
        """
        inputs, labels = checked_batch(batch)
        size = labels.shape[0]
        # The mean over no example would be NaN, where DP-SGD takes a legal step of noise alone.
        loss = F.cross_entropy(self.network(inputs), labels, reduction="sum") / max(size, 1)
        if not math.isfinite(loss.item()):
            raise NonFiniteGradientError(
                f"the training loss is {loss.item()} at step {self.global_step} (epoch {self.current_epoch}). "
                "Lower the learning rate, or check the inputs for NaN."
            )
        if size and self._writes_logs_now():
            self.log("train/loss", loss.detach(), batch_size=size)
        return loss

    def _writes_logs_now(self) -> bool:
        # `self.log` costs more than half a step of a small network, so it is called only when Lightning would write.
        if self._trainer is None:
            return False
        interval: int = self._trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it at run time
        return interval > 0 and (self.global_step + 1) % interval == 0

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs `val/loss` and `val/accuracy` of the whole validation set."""
        self._evaluate(batch, "val", self.val_accuracy)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs `test/loss` and `test/accuracy` of the whole test set."""
        self._evaluate(batch, "test", self.test_accuracy)

    def configure_optimizers(self) -> Optimizer:
        """The optimizer of all parameters that are trainable now."""
        return self.make_optimizer(parameter for parameter in self.parameters() if parameter.requires_grad)

    def _evaluate(self, batch: Batch, stage: str, accuracy: MulticlassAccuracy) -> None:
        inputs, labels = checked_batch(batch)
        logits = self.network(inputs)
        accuracy.update(logits, labels)
        self.log(f"{stage}/loss", F.cross_entropy(logits, labels), batch_size=len(labels), on_epoch=True, on_step=False)
        self.log(f"{stage}/accuracy", accuracy, on_epoch=True, on_step=False)


def checked_batch(batch: object) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a batch, if it has the form of the project.

    Args:
        batch: a tuple or list (inputs (B, *shape) floating, labels (B,) int64, index (B,) int64).

    Raises:
        InvalidBatchError: it has another form; the message names what came.

    Example:
        >>> checked_batch((torch.zeros(2, 4), torch.tensor([0, 1]), torch.tensor([7, 8])))[1]
        tensor([0, 1])
    """
    if isinstance(batch, (tuple, list)) and len(batch) == 3 and all(isinstance(part, Tensor) for part in batch):
        inputs, labels, index = batch
        integers = labels.dtype == torch.int64 and index.dtype == torch.int64
        if integers and inputs.is_floating_point() and labels.shape == index.shape == inputs.shape[:1]:
            return inputs, labels
    raise InvalidBatchError(
        f"a batch must be (inputs, labels, index) with inputs (B, ...) floating, labels (B,) int64 and index (B,) "
        f"int64, the row of each example in its data set; got {_describe(batch)}."
    )


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}: [" + ", ".join(_describe(part) for part in value) + "]"
    return type(value).__name__
