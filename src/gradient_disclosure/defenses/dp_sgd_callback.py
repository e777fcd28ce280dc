"""DP-SGD as a Lightning callback."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.rank_zero import rank_zero_info  # type: ignore[attr-defined]
from torch import Tensor
from torch.optim import Optimizer

from gradient_disclosure.defenses.dp_sgd_accounting import privacy_spent
from gradient_disclosure.defenses.dp_sgd_checks import refuse_accumulation, refuse_unsupported_training
from gradient_disclosure.defenses.dp_sgd_opacus import OpacusSession
from gradient_disclosure.defenses.dp_sgd_settings import PrivacySettings, PrivacyTerms
from gradient_disclosure.defenses.dp_sgd_step_checks import (
    check_loss,
    check_noisy_gradient,
    check_per_example_gradients,
    index_of,
)
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.training.batches import derived_seed


class DPSGDCallback(Callback):
    """Clips each example's gradient and adds noise to their sum, at every step of one training.

    Opacus is on the module from the start of training to its end or failure; then module and optimizer are as before.

    - Until the optimizer steps, ``p.grad`` is the ordinary mean gradient (in ``on_after_backward`` and
      ``on_before_optimizer_step`` too), but the step ignores it: it takes ``p.grad_sample`` and writes the noisy
      gradient to ``p.grad``. So other callbacks can audit a step, but not change it through ``p.grad``.
    - The sum of the clipped gradients is divided by the expected batch size n / steps_per_epoch. (Opacus truncates
      that to an integer, to 0 at batch size 1, which is undone here. It scales the step, with no influence on ε.)
    - An empty batch takes a step of noise alone, whatever the module's loss is then. Any other NaN or infinity stops
      the training before the weights change.
    - The noise comes from torch's ordinary generator, which is not cryptographically secure.

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
        self._session: OpacusSession | None = None
        self._index = torch.empty(0, dtype=torch.int64)
        self._compared = False

    @property
    def terms(self) -> PrivacyTerms:
        """What the training is accounted with.

        Raises:
            UnsupportedTrainingError: no training has started.
        """
        if self._terms is None:
            raise UnsupportedTrainingError("DP-SGD: its terms are known once training has started, not before.")
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
        terms = self.terms
        epsilon, accountant = privacy_spent(self._history, terms.delta, terms.accountant)
        return {
            "epsilon": epsilon,
            "delta": terms.delta,
            "noise_multiplier": terms.noise_multiplier,
            "clip_norm": terms.clip_norm,
            "sampling_rate": terms.sampling_rate,
            "steps": self._accounted_steps,
            "accountant": accountant,
        }

    @property
    def _accounted_steps(self) -> int:
        return sum(steps for _, _, steps in self._history)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Refuse what would not be private, then put Opacus in place."""
        refuse_unsupported_training(trainer, pl_module)
        if self._history and self._restored is None:
            raise UnsupportedTrainingError(
                "DP-SGD: this callback has already seen a training. Make a fresh one, or resume from a checkpoint."
            )
        if self._accounted_steps != trainer.global_step:
            raise UnsupportedTrainingError(
                f"DP-SGD: {trainer.global_step} steps were taken before, but {self._accounted_steps} are accounted. "
                "Some were taken without DP-SGD, so that no epsilon holds: start a new training."
            )
        loader: Any = trainer.train_dataloader
        steps = trainer.estimated_stepping_batches
        self._terms = self._settings.terms(
            members=len(loader.dataset),
            sampling_rate=loader.plan.sampling_rate,
            steps=None if math.isinf(steps) else int(steps),
            saved=self._terms if self._restored is not None else None,
        )
        self._generator = self._noise_generator(pl_module.device)
        self._restored = None
        self._compared = False
        self._session = OpacusSession(
            trainer,
            pl_module,
            terms=self._terms,
            history=self._history,
            generator=self._generator,
            before_step=lambda parameters: check_noisy_gradient(parameters, trainer.global_step, self._index),
        )
        rank_zero_info(self._terms.describe())

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Note which examples take part; Opacus need not see an empty batch."""
        refuse_accumulation(trainer, pl_module)
        self._index = index_of(batch)
        assert self._session is not None
        self._session.record(self._index.numel() > 0)

    def on_before_backward(self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: Tensor) -> None:
        """Refuse a loss that is not finite, or a sum."""
        if self._index.numel() > 0:
            check_loss(loss, trainer.global_step, self._index)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Check the per-example gradients; for an empty batch, put none in place."""
        assert self._session is not None
        if self._index.numel() == 0:
            self._session.put_no_gradients()
            return
        check_per_example_gradients(pl_module, self._index.numel(), against_autograd=not self._compared)
        self._compared = True

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make sure that the accountant has counted the same steps as Lightning, at the rate of the sampler."""
        rates = {rate for _, rate, _ in self._history}
        if self._accounted_steps != trainer.global_step or rates != {self.terms.sampling_rate}:
            raise UnsupportedTrainingError(
                f"DP-SGD: after {trainer.global_step} steps at sampling rate {self.terms.sampling_rate} the accountant "
                f"holds {self._history} (noise multiplier, rate, steps). Does the module override optimizer_step "
                "without calling optimizer.step(closure) once each time?"
            )

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Leave module and optimizer as they were."""
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Leave module and optimizer as they were."""
        self._close()

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
        self._history = [(sigma, rate, steps) for sigma, rate, steps in state_dict["history"]]

    def _noise_generator(self, device: torch.device) -> torch.Generator:
        generator = torch.Generator(device)
        if self._restored is None:
            return generator.manual_seed(derived_seed("dp-sgd noise", self._seed))
        if self._restored["device"] != device.type:
            raise UnsupportedTrainingError(
                f"DP-SGD: the checkpoint's noise comes from a generator on {self._restored['device']}, whose numbers a "
                f"generator on {device.type} does not give. Resume on the same kind of device."
            )
        return generator.set_state(self._restored["noise"])

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
