"""What a training run asks of a defense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from lightning.pytorch import Callback
from torch import Tensor

from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.callbacks.audit_schedule import AuditSchedule
from gradient_disclosure.callbacks.audited_layers import checked_layers
from gradient_disclosure.callbacks.gradient_uniqueness import GradientUniqueness
from gradient_disclosure.defenses.gnq_censor import Censor
from gradient_disclosure.gram.options import Mode, checked_mode
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import Damping
from gradient_disclosure.scores.scoring import Scoring
from gradient_disclosure.training.batches import BatchPlan, derived_seed


@dataclass(frozen=True)
class AuditSettings:
    """How the in-run audit scores.

    Attributes:
        damping: λ, see :class:`GradientUniqueness`.
        membership_prior: q.
        scope: what the sum runs over, see :class:`Scoring`.
        inverse: how the sum is inverted, see :class:`Scoring`.
        every_n_steps: one random step of so many is audited, see :class:`AuditSchedule`.
        layers: patterns of the names of the parameters to audit; None for all.
        mode: "untouched" or "reuse", see :class:`GradientUniqueness`.
    """

    damping: Damping = field(default_factory=lambda: Damping(1e-2))
    membership_prior: float = 0.5
    scope: str = "batch"
    inverse: str = "damped"
    every_n_steps: int = 1
    layers: tuple[str, ...] | None = None
    mode: Mode = "untouched"

    def __post_init__(self) -> None:
        checked_mode(self.mode)
        _ = self.scoring, self.schedule(0), checked_layers(self.layers, ())  # each refuses what it does not know

    @property
    def scoring(self) -> Scoring:
        """How a batch is scored."""
        return Scoring(self.damping, self.scope, self.inverse)

    def schedule(self, seed: int) -> AuditSchedule:
        """Which steps of a training with this seed are audited."""
        return AuditSchedule(self.every_n_steps, derived_seed("audit schedule", seed))

    def callback(
        self, pool_size: int, *, seed: int = 0, censor: Censor | None = None, mechanism: MechanismSource | None = None
    ) -> GradientUniqueness:
        """The audit for batches ``(inputs, labels, index)`` of a pool of this size; the seed is of the schedule."""
        return GradientUniqueness(
            self.damping,
            example_ids=lambda batch: batch[2],
            membership_prior=self.membership_prior,
            known_ids=pool_size,
            censor=censor,
            mechanism=None if mechanism is None else mechanism.mechanism,
            scope=self.scope,
            inverse=self.inverse,
            every_n_steps=self.schedule(seed),
            layers=self.layers,
            mode=self.mode,
        )


class MechanismSource(Protocol):
    """Something that knows, once training has started, how gradients are clipped and noised."""

    def mechanism(self) -> GaussianMechanism:
        """Clipping norm and noise multiplier in force."""


@dataclass(frozen=True)
class AuditRequest:
    """What a training wants of its callbacks.

    Attributes:
        settings: how to score.
        pool_size: number of examples N.
        wanted: whether the training is to be audited even if the defense does not need it.
        seed: of any random choice of the defense.
    """

    settings: AuditSettings
    pool_size: int
    wanted: bool
    seed: int

    def plain(self, mechanism: MechanismSource | None = None) -> list[Callback]:
        """The audit without a censor, if wanted."""
        return [self.settings.callback(self.pool_size, seed=self.seed, mechanism=mechanism)] if self.wanted else []


class Defense(Protocol):
    """A way to train that is meant to disclose less. The same object serves the target and every shadow model."""

    @property
    def name(self) -> str:
        """Name in configs, tables and results."""

    def plan(self, members: Tensor, batch_size: int, seed: int) -> BatchPlan:
        """Which members form which batch."""

    def callbacks(self, request: AuditRequest) -> list[Callback]:
        """Fresh callbacks for one training: the defense itself, and the audit."""

    def summary(self, callbacks: Sequence[Callback]) -> Mapping[str, float | int | str | None]:
        """What the finished training is reported with: ε and noise, or the fraction censored."""

    def release(
        self, per_example: Sequence[Tensor], summary: Mapping[str, float | int | str | None], generator: torch.Generator
    ) -> ReleasedGradient:
        """What an observer of the training sees of a batch with these per-example gradients, each (B, *shape)."""


def audit_of(callbacks: Sequence[Callback]) -> GradientUniqueness | None:
    """The audit among the callbacks of one training."""
    return next((c for c in callbacks if isinstance(c, GradientUniqueness)), None)


def mean_gradient(per_example: Sequence[Tensor]) -> ReleasedGradient:
    """The undefended release: the gradient of the mean loss."""
    return ReleasedGradient(tuple(g.mean(dim=0) for g in per_example), batch_size=per_example[0].shape[0])
