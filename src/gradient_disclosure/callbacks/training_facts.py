"""What the audit must know of a training under Lightning, and what it refuses."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.ledger import Exposure
from gradient_disclosure.scores.bits import Sampling


def refuse_unsupported_training(trainer: Trainer, pl_module: LightningModule) -> None:
    """Stop where the examples of one step cannot be told.

    Raises:
        UnsupportedTrainingError: with what to change.
    """
    plan = getattr(trainer.train_dataloader, "plan", None)
    if trainer.accumulate_grad_batches != 1 and getattr(plan, "is_poisson", False):
        raise UnsupportedTrainingError(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches} with Poisson batches: an example may be "
            "drawn into several micro-batches of one step, and would be two examples. Set accumulate_grad_batches=1."
        )
    if trainer.world_size != 1 and plan is not None:
        raise UnsupportedTrainingError(
            f"{trainer.world_size} processes would all train on the same batches of this "
            f"{type(trainer.train_dataloader).__name__}: use a torch DataLoader, for which Lightning divides the "
            "examples among them, or one device."
        )
    if not pl_module.automatic_optimization:
        raise UnsupportedTrainingError("manual optimization is not audited: use automatic optimization")


def loss_scale(trainer: Trainer) -> float:
    """What the loss is multiplied with before the backward pass: by a gradient scaler, and 1/n of n micro-batches."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    scale = float(scaler.get_scale()) if scaler is not None else 1.0
    return scale / trainer.accumulate_grad_batches


def has_scaler(trainer: Trainer) -> bool:
    """Whether the loss is scaled, so that steps may be skipped."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def scaler_will_skip(trainer: Trainer, pl_module: LightningModule) -> bool:
    """Whether a gradient scaler is going to skip this step, because the scaled gradients overflowed."""
    if not has_scaler(trainer):
        return False
    return any(p.grad is not None and not bool(torch.isfinite(p.grad).all()) for p in pl_module.parameters())


def is_plainly_a_sum(loss: Tensor) -> bool:
    """Whether a loss is recognizably a sum over the batch: torch's own, with reduction "sum", or "none" and ``.sum()``.

    Args:
        loss: what Lightning calls backward on, i.e. the module's loss divided by accumulate_grad_batches.

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


def exposure_of(trainer: Trainer, prior: float, n_ranks: int = 1) -> Exposure | None:
    """How often an example is drawn: from the loader's own plan, or from its batch size; None if it tells neither.

    Args:
        trainer: knows the loader.
        prior: q.
        n_ranks: processes that train together, each with a batch of its own; r is that of all these batches together.
            (Examples that a ``DistributedSampler`` repeats at the end of an epoch are not counted.)
    """
    loader: Any = trainer.train_dataloader
    plan = getattr(loader, "plan", None)
    accumulated = trainer.accumulate_grad_batches
    if plan is not None and accumulated == 1:
        return Exposure(Sampling(plan.sampling_rate, prior), bool(plan.is_poisson))
    members, batch_size = number_of_examples(loader), getattr(loader, "batch_size", None)
    if not members or not batch_size:
        return None
    batch_size *= n_ranks
    batches = int(trainer.num_training_batches)
    whole_epochs = batches == -(-members // batch_size)
    rate = 1.0 / -(-batches // accumulated) if whole_epochs else min(1.0, batch_size * accumulated / members)
    return Exposure(Sampling(rate, prior), poisson=False)


def log_interval(trainer: Trainer) -> int:
    """Steps between two entries of the loggers."""
    interval: int = trainer.log_every_n_steps  # type: ignore[attr-defined]  # Lightning sets it at run time
    return max(1, interval)
