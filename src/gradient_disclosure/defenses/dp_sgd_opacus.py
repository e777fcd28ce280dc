"""Opacus on one module for the time of one training: set up, and taken away without a trace."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn

from gradient_disclosure.defenses.dp_sgd_settings import PrivacyTerms


class OpacusSession:
    """Opacus's hooks on a module, and its optimizer in the place of the module's own.

    Learning rate schedules keep acting on the module's own optimizer, whose parameter groups Opacus's shares.

    Args:
        trainer: a trainer whose loader samples by Poisson at rate 1/len(loader).
        module: the module to train.
        terms: clipping norm and noise.
        history: steps accounted so far; each step is added to this very list.
        generator: source of the noise.
        before_step: called with each parameter's clipped and noisy ``grad``, before the weights change.
    """

    def __init__(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        *,
        terms: PrivacyTerms,
        history: list[tuple[float, float, int]],
        generator: torch.Generator,
        before_step: Callable[[list[Any]], None],
    ) -> None:
        self._trainer, self._module, self._own_optimizer = trainer, module, trainer.optimizers[0]
        self._hooks: Any = None
        loader: Any = trainer.train_dataloader
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            engine = PrivacyEngine(accountant=terms.accountant)
        engine.accountant.history = history
        try:
            self._hooks, optimizer, _ = engine.make_private(
                module=module,
                optimizer=self._own_optimizer,
                data_loader=loader,
                noise_multiplier=terms.noise_multiplier,
                max_grad_norm=terms.clip_norm,
                poisson_sampling=False,  # the loader already draws that way
                wrap_model=False,
                noise_generator=generator,
            )
        except BaseException:
            self.close()
            raise
        optimizer.expected_batch_size = len(loader.dataset) / len(loader)  # Opacus truncates it to an integer
        account = optimizer.step_hook

        def before_each_step(stepping: DPOptimizer) -> None:
            before_step(stepping.params)
            account(stepping)

        optimizer.attach_step_hook(before_each_step)
        trainer.strategy.optimizers = [optimizer]

    def record(self, wanted: bool) -> None:
        """Whether the coming forward and backward pass is to give per-example gradients."""
        if wanted:
            self._hooks.enable_hooks()
        else:
            self._hooks.disable_hooks()

    def put_no_gradients(self) -> None:
        """Give every trainable parameter per-example gradients of zero examples."""
        for parameter in self._module.parameters():
            if parameter.requires_grad:
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Remove the hooks and every attribute, and put the module's own optimizer back."""
        if self._hooks is not None:
            self._hooks.cleanup()
        _remove_traces(self._module)
        self._trainer.strategy.optimizers = [self._own_optimizer]


def _remove_traces(module: nn.Module) -> None:
    """What Opacus's own clean-up leaves behind, in particular after an exception."""
    for handle in getattr(module, "autograd_grad_sample_hooks", []):
        handle.remove()
    for layer in module.modules():
        for attribute in ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad"):
            layer.__dict__.pop(attribute, None)
    for parameter in module.parameters():
        for attribute in ("grad_sample", "summed_grad", "_forward_counter", "_current_grad_sample", "_norm_sample"):
            parameter.__dict__.pop(attribute, None)
