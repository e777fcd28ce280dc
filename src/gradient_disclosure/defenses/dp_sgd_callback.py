"""DP-SGD as a Lightning callback: Opacus's hooks and optimizer for the time of one training."""

from __future__ import annotations

import math
import warnings
from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from opacus import PrivacyEngine
from opacus.grad_sample import GradSampleHooks
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn
from torch.optim import Optimizer

from gradient_disclosure.defenses.dp_sgd_accounting import privacy_spent
from gradient_disclosure.defenses.dp_sgd_checks import (
    check_per_example_gradients,
    index_of,
    refuse_accumulation,
    refuse_summed_loss,
    refuse_unsupported_training,
)
from gradient_disclosure.defenses.dp_sgd_settings import PrivacySettings, PrivacyTerms
from gradient_disclosure.errors import NonFiniteGradientError, UnsupportedTrainingError
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.training.batches import derived_seed


class DPSGDCallback(Callback):
    """Clips each example's gradient and adds noise to their sum, at every step of one training.

    When training starts, Opacus's hooks are set on the module and its ``DPOptimizer`` takes the place of the module's
    optimizer (learning rate schedules keep acting on the original, whose parameter groups it shares). When training
    ends or fails, both are removed and the module is as it was.

    - Until the optimizer steps, ``p.grad`` is the ordinary mean gradient (also in ``on_after_backward`` and
      ``on_before_optimizer_step``), but the step ignores it: it takes ``p.grad_sample`` and writes the noisy gradient
      to ``p.grad``. So other callbacks can audit the step, and cannot change it by changing ``p.grad``.
    - The sum of clipped gradients is divided by the expected batch size n / steps_per_epoch. Opacus truncates that to
      an integer (to 0 at batch size 1); this is undone. It scales the step and has no influence on ε.
    - An empty batch takes a step of noise alone, whatever the module's loss is then; any other NaN or infinity stops
      the training before the weights change. (A module that logs its loss logs NaN for an empty batch.)
    - The state for a resume (noise generator, history of the accountant) is part of the checkpoint.

    The noise comes from torch's ordinary generator, which is not cryptographically secure.

    Args:
        settings: clipping norm, and noise or budget.
        seed: seed of the noise; its stream is separate from the sampler's even if the seeds are equal.

    Example:
        >>> callback = DPSGDCallback(PrivacySettings(clip_norm=1.0, noise_multiplier=1.0), seed=0)
        >>> callback.state_dict()
        {}
    """

    def __init__(self, settings: PrivacySettings, *, seed: int) -> None:
        self._settings = settings
        self._seed = seed
        self._terms: PrivacyTerms | None = None
        self._history: list[tuple[float, float, int]] = []
        self._generator: torch.Generator | None = None
        self._restored: dict[str, Any] | None = None
        self._module: nn.Module | None = None  # the module that carries Opacus's hooks, while it does
        self._hooks: GradSampleHooks | None = None
        self._original: Optimizer | None = None
        self._index: Tensor | None = None
        self._compared = False

    @property
    def terms(self) -> PrivacyTerms:
        """What the training is accounted with.

        Raises:
            UnsupportedTrainingError: no training has started.
        """
        if self._terms is None:
            raise UnsupportedTrainingError(
                "DP-SGD: nothing is known of the privacy of a training that has not started."
            )
        return self._terms

    def mechanism(self) -> GaussianMechanism:
        """Clipping norm and noise multiplier in force."""
        return GaussianMechanism(self.terms.clip_norm, self.terms.noise_multiplier)

    def epsilon(self, delta: float | None = None) -> float:
        """ε spent so far, for adding or removing one member.

        Args:
            delta: δ; None for the one of the settings.
        """
        return privacy_spent(self._history, self.terms.delta if delta is None else delta, self.terms.accountant)[0]

    def summary(self) -> dict[str, float | int | str]:
        """epsilon, delta, noise_multiplier, clip_norm, sampling_rate, steps and the accountant that epsilon is from."""
        epsilon, accountant = privacy_spent(self._history, self.terms.delta, self.terms.accountant)
        return {
            "epsilon": epsilon,
            "delta": self.terms.delta,
            "noise_multiplier": self.terms.noise_multiplier,
            "clip_norm": self.terms.clip_norm,
            "sampling_rate": self.terms.sampling_rate,
            "steps": self._steps,
            "accountant": accountant,
        }

    @property
    def _steps(self) -> int:
        return sum(steps for _, _, steps in self._history)

    # ---------------------------------------------------------------- Lightning hooks

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse what would not be private, then make the module's optimizer private."""
        refuse_unsupported_training(trainer, pl_module)
        if self._restored is None and self._history:
            raise UnsupportedTrainingError(
                "DP-SGD: this callback has already seen a training. Make a fresh one, or resume from a checkpoint."
            )
        if self._steps != trainer.global_step:
            raise UnsupportedTrainingError(
                f"DP-SGD: the training stands at step {trainer.global_step}, of which {self._steps} were accounted. The "
                "other steps were taken without DP-SGD, so no epsilon holds: start a new training."
            )
        plan = trainer.train_dataloader.plan
        members, steps = plan.members.numel(), trainer.estimated_stepping_batches
        self._terms = self._settings.terms(
            members=members,
            sampling_rate=plan.sampling_rate,
            steps=None if math.isinf(steps) else int(steps),
            saved=self._terms if self._restored is not None else None,
        )
        self._generator = self._noise_generator(pl_module.device)
        self._restored = None
        self._attach(trainer, pl_module, members / plan.steps_per_epoch)
        rank_zero_info(self._terms.describe())

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Look whether the batch is empty; Opacus need not see it then."""
        refuse_accumulation(trainer, pl_module)
        self._index = index_of(batch)
        assert self._hooks is not None
        if self._index.numel() == 0:
            self._hooks.disable_hooks()
        else:
            self._hooks.enable_hooks()

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Refuse a loss that is NaN or a sum."""
        if self._index is None or self._index.numel() == 0:
            return
        refuse_summed_loss(loss)
        if not torch.isfinite(loss):
            raise NonFiniteGradientError(
                f"The loss is {loss.item()} at step {trainer.global_step}, on examples {self._index.tolist()}. Lower the "
                "learning rate, or look at these inputs."
            )

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the per-example gradients, or put none at all in place for an empty batch."""
        assert self._index is not None
        if self._index.numel() == 0:
            for parameter in _trainable(pl_module):
                parameter.grad_sample = parameter.new_zeros((0, *parameter.shape))
            return
        check_per_example_gradients(pl_module, self._index.numel(), against_autograd=not self._compared)
        self._compared = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make sure that the accountant and Lightning have counted the same steps."""
        self._index = None
        if self._steps != trainer.global_step:
            raise UnsupportedTrainingError(
                f"DP-SGD: Lightning counts {trainer.global_step} steps, the accountant {self._steps}. Does the module "
                "override optimizer_step without calling optimizer.step(closure) each time?"
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave the module and its optimizer as they were."""
        self._detach(trainer)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave the module and its optimizer as they were."""
        self._detach(trainer)

    def state_dict(self) -> dict[str, Any]:
        """Terms, history and state of the noise as tensors, numbers and plain containers."""
        if self._terms is None or self._generator is None:
            return {}
        return {
            "terms": asdict(self._terms),
            "history": [list(entry) for entry in self._history],
            "noise": self._generator.get_state(),
            "device": self._generator.device.type,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the terms and the history of a checkpoint; the noise goes on when training starts."""
        self._restored = state_dict
        self._terms = PrivacyTerms(**state_dict["terms"])
        self._history = [(float(sigma), float(rate), int(steps)) for sigma, rate, steps in state_dict["history"]]

    # ---------------------------------------------------------------- Opacus

    def _noise_generator(self, device: torch.device) -> torch.Generator:
        generator = torch.Generator(device)
        if self._restored is None:
            return generator.manual_seed(derived_seed("dp-sgd noise", self._seed))
        if self._restored["device"] != device.type:
            raise UnsupportedTrainingError(
                f"DP-SGD: the checkpoint's noise generator lives on {self._restored['device']}, but training goes on on "
                f"{device.type}, where its numbers differ. Resume on the same kind of device."
            )
        generator.set_state(self._restored["noise"])
        return generator

    def _attach(self, trainer: pl.Trainer, pl_module: pl.LightningModule, expected_batch_size: float) -> None:
        self._module, self._original, self._compared = pl_module, trainer.optimizers[0], False
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            engine = PrivacyEngine(accountant=self.terms.accountant)
        engine.accountant.history = self._history
        self._hooks, private, _ = engine.make_private(
            module=pl_module,
            optimizer=self._original,
            data_loader=trainer.train_dataloader,
            noise_multiplier=self.terms.noise_multiplier,
            max_grad_norm=self.terms.clip_norm,
            poisson_sampling=False,  # the loader already draws that way
            wrap_model=False,
            noise_generator=self._generator,
        )
        private.expected_batch_size = expected_batch_size
        account = private.step_hook

        def check_and_account(optimizer: DPOptimizer) -> None:
            self._refuse_non_finite(trainer, optimizer)
            account(optimizer)

        private.attach_step_hook(check_and_account)
        trainer.strategy.optimizers = [private]

    def _refuse_non_finite(self, trainer: pl.Trainer, optimizer: DPOptimizer) -> None:
        if torch.isfinite(torch.nn.utils.get_total_norm([p.grad for p in optimizer.params])):
            return
        assert self._index is not None
        squares = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in optimizer.grad_samples]).sum(dim=0)
        examples = self._index[~torch.isfinite(squares)].tolist()
        raise NonFiniteGradientError(
            f"The gradient is not finite at step {trainer.global_step}, by examples {examples}. No step was taken. Lower "
            "the learning rate, or look at these inputs."
        )

    def _detach(self, trainer: pl.Trainer) -> None:
        if self._module is None:
            return
        if self._hooks is not None:
            self._hooks.cleanup()
        _remove_traces(self._module)
        trainer.strategy.optimizers = [self._original]
        self._module = self._hooks = self._original = self._index = None


def _trainable(module: nn.Module) -> list[Any]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


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
