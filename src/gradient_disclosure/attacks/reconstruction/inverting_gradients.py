"""Inverting gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradient_disclosure.attacks.reconstruction.distances import CosineDistance
from gradient_disclosure.attacks.reconstruction.gradient_matching import GradientMatching
from gradient_disclosure.attacks.reconstruction.initialization import UniformInitialization
from gradient_disclosure.attacks.reconstruction.labels import AnalyticLabel, JointLabels, LabelRecovery
from gradient_disclosure.attacks.reconstruction.optimizers import SignedAdam
from gradient_disclosure.attacks.reconstruction.priors import TotalVariation
from gradient_disclosure.attacks.reconstruction.published import PublishedAttack


@dataclass(frozen=True)
class InvertingGradients(PublishedAttack):
    """Inverting gradients (Geiping et al. 2020): cosine distance, total variation, signed Adam within the value range.

    A single example's label is read off the output layer's gradient; those of a larger batch are searched for jointly
    unless they are given.

    Attributes:
        iterations: Adam steps of a restart.
        restarts: the most restarts.
        total_variation: weight of the prior.
        tolerance: cosine distance at which no further restart is tried.
        step_size: first Adam step, in units of half the value range.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
        >>> layer = nn.Linear(2, 3)
        >>> released = ReleasedGradient((torch.zeros(3, 2), torch.tensor([0.2, 0.4, -0.6])), batch_size=1)
        >>> attack = InvertingGradients(iterations=20, restarts=1)
        >>> attack.reconstruct(layer, released, shape=(2,), num_classes=3, value_range=(0.0, 1.0),
        ...                    generator=torch.Generator().manual_seed(0)).labels
        tensor([2])
    """

    name: ClassVar[str] = "inverting_gradients"
    iterations: int = 100
    restarts: int = 4
    total_variation: float = 1e-5
    tolerance: float = 1e-6
    step_size: float = 0.4

    def parts(self, labels: LabelRecovery) -> GradientMatching:
        """Cosine distance, total variation, uniform initialization, signed Adam."""
        return GradientMatching(
            name=self.name,
            distance=CosineDistance(),
            prior=TotalVariation(self.total_variation),
            labels=labels,
            initialization=UniformInitialization(),
            optimizer=SignedAdam(self.iterations, self.step_size),
            restarts=self.restarts,
            tolerance=self.tolerance,
        )

    def label_recovery(self, batch_size: int) -> LabelRecovery:
        """From the output layer's gradient for a single example, jointly for a larger batch."""
        return AnalyticLabel() if batch_size == 1 else JointLabels()
