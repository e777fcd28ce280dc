"""Set-ups in which DP-SGD would be wrong under Lightning, each refused with what to change."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.plugins.precision import DoublePrecision, Precision
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from opacus.grad_sample import GradSampleHooks
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gradient_disclosure.errors import InvalidBatchError, UnsupportedTrainingError
from gradient_disclosure.training.loader import BatchLoader


def refuse_unsupported_training(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Stop before the first step if DP-SGD would not be private, or not the training that was asked for.

    Args:
        trainer: a trainer that is about to take its first step.
        pl_module: the module it trains.

    Raises:
        UnsupportedTrainingError: the message says what was found and what to change.

    Example:
        >>> trainer = pl.Trainer(accumulate_grad_batches=2, logger=False, accelerator="cpu")
        >>> refuse_unsupported_training(trainer, pl.LightningModule())
        Traceback (most recent call last):
        ...
        gradient_disclosure.errors.UnsupportedTrainingError: DP-SGD: accumulate_grad_batches is 2, ...
    """
    for check in _CHECKS:
        check(trainer, pl_module)


def _refuse(message: str) -> None:
    raise UnsupportedTrainingError(f"DP-SGD: {message}")


def refuse_accumulation(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Refuse gradient accumulation; a scheduler may switch it on in the middle of a training."""
    if trainer.accumulate_grad_batches != 1:
        _refuse(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}, but a step has to be accounted at the rate "
            "of one batch. Set it to 1 and raise the batch size instead."
        )


def _check_automatic(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if not pl_module.automatic_optimization:
        _refuse(
            "the module uses manual optimization, whose steps cannot be told apart from outside. Set "
            "automatic_optimization to True."
        )


def _check_device(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if trainer.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        _refuse(
            f"the strategy is {type(trainer.strategy).__name__} on {trainer.world_size} device(s); noise and accounting "
            'are made for one. Use Trainer(devices=1, strategy="auto").'
        )


def _check_precision(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if type(trainer.precision_plugin) not in (Precision, DoublePrecision):
        _refuse(
            f"precision {trainer.precision!r} scales or rounds gradients, so that neither the clipping norm nor the noise "
            'is what is accounted for. Use precision="32-true".'
        )


def _check_clipping(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if trainer.gradient_clip_val is not None or trainer.gradient_clip_algorithm is not None:
        _refuse(
            f"gradient_clip_val={trainer.gradient_clip_val} of the trainer would be overwritten by the noisy gradient, "
            "without a word. Leave it unset: DP-SGD clips each example's gradient to clip_norm."
        )
    if is_overridden("configure_gradient_clipping", pl_module):
        _refuse(
            "the module overrides configure_gradient_clipping, whose result would be overwritten by the noisy gradient. "
            "Remove it: DP-SGD clips each example's gradient to clip_norm."
        )


def _check_optimizer(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if len(trainer.optimizers) != 1:
        _refuse(f"the module has {len(trainer.optimizers)} optimizers, and only one can be made private. Use one.")
    optimizer = trainer.optimizers[0]
    if isinstance(optimizer, torch.optim.LBFGS):
        _refuse("LBFGS evaluates the loss several times in a step, each of which would leak. Use SGD or Adam.")
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = [name for name, p in pl_module.named_parameters() if p.requires_grad and id(p) not in updated]
    if left_out:
        _refuse(
            f"trainable parameters {', '.join(left_out)} are not in the optimizer; their per-example gradients would "
            "pile up. Give them to the optimizer or freeze them with requires_grad_(False)."
        )


def _check_layers(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    for name, module in pl_module.named_modules():
        kind = type(module).__name__
        if isinstance(module, _BatchNorm) and module.training:
            _refuse(
                f"{name} ({kind}) normalizes with the other examples of the batch and keeps their mean: no example has a "
                "gradient of its own. Use GroupNorm."
            )
        if getattr(module, "inplace", False) is True:
            _refuse(f"{name} ({kind}) overwrites the output of the layer before it. Set inplace=False.")
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if own and not module.training:
            _refuse(
                f"{name} ({kind}) is trainable but in eval mode, where Opacus records nothing. Call .train() on it, or "
                "freeze it with requires_grad_(False)."
            )
        if own and isinstance(module, pl.LightningModule):
            _refuse(
                "the LightningModule itself owns trainable parameters; Opacus needs each in a layer with a forward of "
                "its own. Move them into a submodule."
            )
        if any(hasattr(module, attribute) for attribute in _ATTRIBUTES_OF_OPACUS):
            _refuse(
                f"{name or kind} still carries Opacus's hooks or an attribute of that name. Start from a new module."
            )
    problems = [*ModuleValidator.validate(pl_module), *GradSampleHooks.validate(pl_module)]
    if problems:
        _refuse("Opacus does not support this module: " + "; ".join(str(problem) for problem in problems))


_ATTRIBUTES_OF_OPACUS = ("autograd_grad_sample_hooks", "activations", "max_batch_len")


def _check_loader(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    loader: Any = trainer.train_dataloader
    if not isinstance(loader, BatchLoader) or not loader.plan.is_poisson:
        found = f"BatchLoader with {type(loader.plan).__name__}" if isinstance(loader, BatchLoader) else type(loader)
        _refuse(
            f"the accountant assumes that each member enters each batch independently, but the training loader is "
            f"{found}. Use BatchLoader(examples, DPSGD(...).plan(members, batch_size, seed))."
        )
    rate = loader.plan.sampling_rate
    if not math.isclose(rate * len(loader), 1.0, rel_tol=1e-12):
        _refuse(
            f"the loader draws at rate {rate}, but would be accounted at 1/len(loader) = {1 / len(loader)}. Build the "
            "plan so that its rate is 1/steps_per_epoch, as PoissonBatches does."
        )


def _check_decisions(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    monitors = [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    monitors += [callback.monitor for callback in trainer.callbacks if isinstance(callback, EarlyStopping)]
    for monitor in monitors:
        if monitor is not None and "train" in monitor:
            _refuse(
                f"a learning rate schedule or early stopping follows {monitor!r}; what it reads off the members has no "
                "noise and is not in epsilon. Let it follow a metric of held-out data."
            )


_CHECKS: tuple[Callable[[pl.Trainer, pl.LightningModule], None], ...] = (
    refuse_accumulation,
    _check_automatic,
    _check_device,
    _check_precision,
    _check_clipping,
    _check_optimizer,
    _check_layers,
    _check_loader,
    _check_decisions,
)


def index_of(batch: Any) -> Tensor:
    """(B,) pool indices of a batch ``(inputs, labels, index)``.

    Raises:
        InvalidBatchError: the batch has another form.

    Example:
        >>> index_of((torch.zeros(2, 3), torch.zeros(2), torch.tensor([4, 7])))
        tensor([4, 7])
    """
    if isinstance(batch, (tuple, list)) and len(batch) == 3 and isinstance(batch[2], Tensor):
        return batch[2]
    raise InvalidBatchError(
        "DP-SGD needs batches (inputs, labels, index), as BatchLoader gives them, to know which are empty; the module's "
        "batch transfer hooks made something else of it."
    )


def refuse_summed_loss(loss: Tensor) -> None:
    """Refuse a loss that is plainly a sum over the batch: Opacus would scale each gradient with the batch size.

    Then a member's presence changes the gradients of all others before they are clipped, and epsilon does not hold. Seen
    are torch's own losses with reduction "sum", and with reduction "none" followed by ``.sum()``.

    Args:
        loss: what Lightning is about to call backward on: the loss divided by accumulate_grad_batches = 1.

    Raises:
        UnsupportedTrainingError: it is a sum.

    Example:
        >>> errors = torch.nn.functional.mse_loss(torch.ones(3, requires_grad=True), torch.zeros(3), reduction="none")
        >>> refuse_summed_loss(errors.mean() / 1)
        >>> refuse_summed_loss(errors.sum() / 1)
        Traceback (most recent call last):
        ...
        gradient_disclosure.errors.UnsupportedTrainingError: DP-SGD: the loss is a sum ...
    """
    node = _parent(loss.grad_fn)
    reduction = getattr(node, "_saved_reduction", None)
    over_each = getattr(_parent(node), "_saved_reduction", None)
    if reduction == 2 or (node is not None and node.name() == "SumBackward0" and over_each == 0):
        _refuse("the loss is a sum over the batch. Return its mean (reduction='mean').")


def _parent(node: Any) -> Any:
    return node.next_functions[0][0] if node is not None and node.next_functions else None


def check_per_example_gradients(module: nn.Module, batch_size: int, *, against_autograd: bool) -> None:
    """Make sure that Opacus saw every gradient of a step, one for each example.

    Args:
        module: the module after its backward pass.
        batch_size: number of examples of the batch, at least 1.
        against_autograd: also compare their mean with ``p.grad``, which finds parts of the loss that Opacus drops.

    Raises:
        UnsupportedTrainingError: a gradient is missing, is not there once for each example, or has other parts.
    """
    for name, p in module.named_parameters():
        if not p.requires_grad:
            continue
        sample = p.grad_sample
        if sample is None:
            _refuse(
                f"{name} is trainable but has no per-example gradient: training_step returned None, did not use it, or "
                "used it outside its own layer's forward or more often in the forward than in the backward pass. "
                "Freeze it with requires_grad_(False) or call its layer once."
            )
        if not isinstance(sample, Tensor) or sample.shape[0] != batch_size:
            found = sample.shape[0] if isinstance(sample, Tensor) else f"{len(sample)} batches of"
            _refuse(
                f"{name} has {found} per-example gradients for a batch of {batch_size}: the batch is not the first axis "
                "of its layer's input (an input that is broadcast over the batch has to be expanded)."
            )
        if against_autograd and p.grad is not None:
            mean_norm = sample.reshape(batch_size, -1).norm(dim=1).mean()
            if (p.grad - sample.mean(dim=0)).norm() > 1e-3 * mean_norm + 1e-12:
                _refuse(
                    f"the gradient of {name} is not the mean of its per-example gradients: the loss has a part that does "
                    "not come from single examples, such as a penalty on the weights, and DP-SGD would drop it. Use the "
                    "optimizer's weight_decay, or a loss that is a mean over examples."
                )
