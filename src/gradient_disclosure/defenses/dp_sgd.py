"""DP-SGD (Abadi et al. 2016): the defense with a guarantee, made private by Opacus under Lightning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.defenses.dp_sgd_callback import DPSGDCallback
from gradient_disclosure.defenses.dp_sgd_release import release_dp_sgd
from gradient_disclosure.defenses.dp_sgd_settings import PrivacySettings
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.batches import PoissonBatches
from gradient_disclosure.training.defense import AuditRequest


@dataclass(frozen=True)
class DPSGD(PrivacySettings):
    """Clip each example's gradient, add noise to their sum, sample batches by Poisson; ε comes from the accountant.

    ε holds for adding or removing one member, for the weights of every step, if nothing else that was computed from the
    members is published. The attributes are those of `PrivacySettings`.

    Example:
        >>> defense = DPSGD(clip_norm=1.0, target_epsilon=8.0)
        >>> defense.plan(torch.arange(700), batch_size=64, seed=0).sampling_rate == 1 / 11
        True
        >>> callback = defense.callback(seed=0)
    """

    @property
    def name(self) -> str:
        """Name in configs, tables and results."""
        return "dp_sgd"

    def plan(self, members: Tensor, batch_size: int, seed: int) -> PoissonBatches:
        """Poisson sampling at the rate that is accounted."""
        return PoissonBatches(members, batch_size, seed)

    def callback(self, *, seed: int) -> DPSGDCallback:
        """A fresh callback for one training."""
        return DPSGDCallback(self, seed=seed)

    def callbacks(self, request: AuditRequest) -> list[Callback]:
        """Fresh callbacks for one training: DP-SGD, and the audit of what it releases if wanted."""
        if self.noise_multiplier == 0 and request.wanted:
            raise UnsupportedTrainingError(
                "noise_multiplier is 0: clipping alone gives no privacy, and its disclosure cannot be scored on the "
                "scale of the noise. Use a positive noise_multiplier, or epsilon=..."
            )
        callback = self.callback(seed=request.seed)
        return [callback, *request.plain(mechanism=callback)]

    def summary(self, callbacks: Sequence[Callback]) -> Mapping[str, float | int | str | None]:
        """Privacy spent by the training of these callbacks, see `DPSGDCallback.summary`.

        Raises:
            UnsupportedTrainingError: there is no DP-SGD among them.
        """
        for callback in callbacks:
            if isinstance(callback, DPSGDCallback):
                return dict(callback.summary())
        raise UnsupportedTrainingError("There is no DPSGDCallback among the callbacks of this training.")

    def release(
        self, per_example: Sequence[Tensor], summary: Mapping[str, float | int | str | None], generator: torch.Generator
    ) -> ReleasedGradient:
        """The clipped and noisy gradient of one batch, with the noise of a finished training's summary."""
        noise_multiplier = summary["noise_multiplier"]
        assert isinstance(noise_multiplier, float)
        return release_dp_sgd(
            per_example, clip_norm=self.clip_norm, noise_multiplier=noise_multiplier, generator=generator
        )
