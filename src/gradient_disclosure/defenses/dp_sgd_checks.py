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
from torch.nn.modules.batchnorm import _BatchNorm

from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.loader import BatchLoader


def refuse_unsupported_training(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Stop before the first step if DP-SGD would not be private, or not the training that was asked for.

    Args:
        trainer: a trainer that is about to take its first step.
        pl_module: the module it trains.

    Raises:
        UnsupportedTrainingError: the message says what was found and what to change.
    """
    for check in _CHECKS:
        check(trainer, pl_module)


def refuse_accumulation(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    """Refuse gradient accumulation; a scheduler may switch it on in the middle of a training.

    Raises:
        UnsupportedTrainingError: it is on.

    Example:
        >>> refuse_accumulation(pl.Trainer(logger=False, accelerator="cpu"), pl.LightningModule())
    """
    if trainer.accumulate_grad_batches != 1:
        _refuse(
            f"accumulate_grad_batches is {trainer.accumulate_grad_batches}, but a step has to be accounted at the rate "
            "of one batch. Set it to 1 and raise the batch size instead."
        )


def _refuse(message: str) -> None:
    raise UnsupportedTrainingError(f"DP-SGD: {message}")


def _check_automatic(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if not pl_module.automatic_optimization:
        _refuse(
            "the module uses manual optimization, whose steps cannot be told apart from outside. Set "
            "automatic_optimization to True."
        )


def _check_device(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if trainer.world_size > 1 or not isinstance(trainer.strategy, SingleDeviceStrategy):
        _refuse(
            f"the strategy is {type(trainer.strategy).__name__} on {trainer.world_size} device(s), but noise and "
            'accounting are made for one. Use Trainer(devices=1, strategy="auto").'
        )


def _check_precision(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if type(trainer.precision_plugin) not in (Precision, DoublePrecision):
        _refuse(
            f"precision {trainer.precision!r} scales or rounds gradients, so that clipping and noise are not what is "
            'accounted for. Use precision="32-true".'
        )


def _check_clipping(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if trainer.gradient_clip_val is not None or trainer.gradient_clip_algorithm is not None:
        _refuse(
            f"gradient_clip_val={trainer.gradient_clip_val} of the trainer would silently be overwritten by the noisy "
            "gradient. Leave it unset: DP-SGD clips each example's gradient to clip_norm."
        )
    if is_overridden("configure_gradient_clipping", pl_module):
        _refuse(
            "the module overrides configure_gradient_clipping, whose result would silently be overwritten by the noisy "
            "gradient. Remove it: DP-SGD clips each example's gradient to clip_norm."
        )


def _check_optimizer(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    if len(trainer.optimizers) != 1:
        _refuse(f"the module has {len(trainer.optimizers)} optimizers, and only one can be made private. Use one.")
    optimizer = trainer.optimizers[0]
    if isinstance(optimizer, torch.optim.LBFGS):
        _refuse("LBFGS evaluates the loss several times in a step, and each time would leak. Use SGD or Adam.")
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    left_out = [name for name, p in pl_module.named_parameters() if p.requires_grad and id(p) not in updated]
    if left_out:
        _refuse(
            f"the trainable parameters {', '.join(left_out)} are not in the optimizer, and their per-example gradients "
            "would pile up. Give them to the optimizer, or freeze them with requires_grad_(False)."
        )


def _check_layers(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    for path, module in pl_module.named_modules():
        name = f"{path or 'the module'} ({type(module).__name__})"
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if isinstance(module, _BatchNorm) and module.training:
            _refuse(
                f"{name} normalizes with the other examples of the batch, so that no example has a gradient of its "
                "own. Use GroupNorm."
            )
        if getattr(module, "inplace", False) is True:
            _refuse(f"{name} overwrites its input, which Opacus's hooks do not allow. Set inplace=False.")
        if own and not module.training:
            _refuse(
                f"{name} is trainable but in eval mode, where Opacus records nothing. Call .train() on it, or freeze "
                "it with requires_grad_(False)."
            )
        if own and isinstance(module, pl.LightningModule):
            _refuse(
                f"{name} itself owns trainable parameters; Opacus needs a layer for each. Move them to a submodule."
            )
        if any(hasattr(module, attribute) for attribute in _ATTRIBUTES_OF_OPACUS):
            _refuse(f"{name} already carries Opacus's hooks, or an attribute of their name. Start from a new module.")
    problems = [*ModuleValidator.validate(pl_module), *GradSampleHooks.validate(pl_module)]
    if problems:
        _refuse("Opacus does not support this module: " + "; ".join(str(problem) for problem in problems))


_ATTRIBUTES_OF_OPACUS = ("autograd_grad_sample_hooks", "activations", "max_batch_len")


def _check_loader(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    loader: Any = trainer.train_dataloader
    if not isinstance(loader, BatchLoader) or not loader.plan.is_poisson:
        plan = f" with {type(loader.plan).__name__}" if isinstance(loader, BatchLoader) else ""
        _refuse(
            "the accountant assumes that each member enters each batch independently, which is not so in the training "
            f"loader, a {type(loader).__name__}{plan}. Use BatchLoader(examples, DPSGD(...).plan(members, batch_size, "
            "seed))."
        )
    rate = loader.plan.sampling_rate
    if not math.isclose(rate * len(loader), 1.0, rel_tol=1e-12):
        _refuse(
            f"the loader draws at rate {rate}, but would be accounted at 1/len(loader) = {1 / len(loader)}. Build the "
            "plan so that its rate is 1/steps_per_epoch, as PoissonBatches does."
        )


def _check_decisions(trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # Lightning sets it at run time
    monitors = [config.monitor for config in trainer.lr_scheduler_configs if config.reduce_on_plateau]
    monitors += [callback.monitor for callback in callbacks if isinstance(callback, EarlyStopping)]
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
