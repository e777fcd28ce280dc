"""What the audit must know of a training under Lightning, and what it refuses."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.ledger import Exposure
from gradient_disclosure.scores.bits import Sampling


def refuse_unsupported_training(trainer: Trainer, pl_module: LightningModule) -> None:
    """Stop where one step is not one forward and one backward pass over one batch.

    Raises:
        UnsupportedTrainingError: with what to change.
    """
    if trainer.accumulate_grad_batches != 1:
        raise UnsupportedTrainingError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}: the audit compares the examples of one "
            "backward pass, and would miss those of the other micro-batches. Set accumulate_grad_batches=1."
        )
    if trainer.world_size != 1:
        raise UnsupportedTrainingError(
            f"{trainer.world_size} processes train together: the audit sees only its own share of each batch. Use "
            "one device."
        )
    if not pl_module.automatic_optimization:
        raise UnsupportedTrainingError("manual optimization is not audited: use automatic optimization")


def loss_scale(trainer: Trainer) -> float:
    """What a gradient scaler multiplies the loss with; 1 without one."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return float(scaler.get_scale()) if scaler is not None else 1.0


def is_plainly_a_sum(loss: Tensor) -> bool:
    """Whether a loss is recognizably a sum over the batch: torch's own, with reduction "sum", or "none" and ``.sum()``.

    Args:
        loss: what Lightning calls backward on, i.e. the module's loss divided by accumulate_grad_batches = 1.

    Example:
        >>> import torch
        >>> errors = torch.nn.functional.mse_loss(torch.ones(3, requires_grad=True), torch.zeros(3), reduction="none")
        >>> is_plainly_a_sum(errors.mean() / 1), is_plainly_a_sum(errors.sum() / 1)
        (False, True)
    """
    node = _input_of(loss.grad_fn)
    each = getattr(_input_of(node), "_saved_reduction", None)
    return getattr(node, "_saved_reduction", None) == 2 or (each == 0 and node.name() == "SumBackward0")


def _input_of(node: Any) -> Any:
    return node.next_functions[0][0] if node is not None and node.next_functions else None


def number_of_examples(loader: Any) -> int | None:
    """Number of examples behind a loader, None if it does not say."""
    dataset: Any = getattr(loader, "dataset", None)
    return len(dataset) if hasattr(dataset, "__len__") else None


def exposure_of(trainer: Trainer, prior: float) -> Exposure | None:
    """How often an example is drawn: from the loader's own plan, or from its batch size; None if it tells neither."""
    loader: Any = trainer.train_dataloader
    plan = getattr(loader, "plan", None)
    if plan is not None:
        return Exposure(Sampling(plan.sampling_rate, prior), bool(plan.is_poisson))
    members, batch_size = number_of_examples(loader), getattr(loader, "batch_size", None)
    if not members or not batch_size:
        return None
    whole_epochs = trainer.num_training_batches == -(-members // batch_size)
    rate = 1.0 / trainer.num_training_batches if whole_epochs else min(1.0, batch_size / members)
    return Exposure(Sampling(rate, prior), poisson=False)


def log_interval(trainer: Trainer) -> int:
    """Steps between two entries of the loggers."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it at run time
    return max(1, interval)
