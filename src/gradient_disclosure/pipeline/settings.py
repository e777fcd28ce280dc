"""All that defines one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradient_disclosure.attacks.reconstruction.attack import ReconstructionAttack
from gradient_disclosure.errors import MissingDataError, UnsupportedTrainingError
from gradient_disclosure.reporting.record import Value
from gradient_disclosure.training.defense import AuditRequest
from gradient_disclosure.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class MembershipSettings:
    """The membership attacks of a run.

    Attributes:
        shadow_models: number of shadow models, even; 0 for none (LiRA is then not run).
        bootstrap: resamples of every interval.
    """

    shadow_models: int = 16
    bootstrap: int = 1000

    def __post_init__(self) -> None:
        if self.shadow_models != 0 and (self.shadow_models < 4 or self.shadow_models % 2):
            raise UnsupportedTrainingError(
                f"{self.shadow_models} shadow models: LiRA needs an even number, at least 4 (each example in half of "
                "them, and a spread to estimate). Use 0 to leave LiRA out."
            )


@dataclass(frozen=True)
class ReconstructionSettings:
    """The gradient reconstructions of a run.

    Attributes:
        attacks: which; none are run on data that are not images.
        examples: number of members attacked, the same at every moment and under every defense.
        early_epochs: epochs done at the moment called "early".
        working_ssim: mean SSIM on undefended gradients at initialization above which an attack counts as working.
        lpips_weights: safetensors with AlexNet's ImageNet convolutions; None looks in torch hub's cache only.
    """

    attacks: tuple[ReconstructionAttack, ...] = ()
    examples: int = 4
    early_epochs: int = 1
    working_ssim: float = 0.9
    lpips_weights: Path | None = None

    def __post_init__(self) -> None:
        if self.lpips_weights is not None and not self.lpips_weights.is_file():
            raise MissingDataError(
                f"attack.reconstruction.lpips_weights={self.lpips_weights} is not a file. Give a safetensors file with "
                "AlexNet's ImageNet convolutions (keys features.*), or leave it out: LPIPS is then missing."
            )


@dataclass(frozen=True)
class RunSettings:
    """One run.

    Attributes:
        recipe: how target and shadow models are trained.
        seed: of everything random.
        membership: membership attacks.
        reconstruction: gradient reconstructions.
        description: what the report says of the settings, under keys ``setting/...``.
    """

    recipe: TrainingRecipe
    seed: int = 0
    membership: MembershipSettings = field(default_factory=MembershipSettings)
    reconstruction: ReconstructionSettings = field(default_factory=ReconstructionSettings)
    description: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # What the defense refuses of the audit, it refuses now and not after the data are at work.
        self.recipe.defense.callbacks(AuditRequest(self.recipe.audit, len(self.recipe.data.pool), True, self.seed))
        prior = self.recipe.audit.membership_prior
        if self.membership.shadow_models and prior != 0.5:
            raise UnsupportedTrainingError(
                f"audit.membership_prior is {prior}: LiRA's shadow models train on halves of the pool and would not "
                "be like a target trained on another fraction. Use 0.5, or attack.membership.shadow_models=0."
            )
