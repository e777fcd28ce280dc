"""Deep leakage from gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gradient_disclosure.attacks.reconstruction.distances import SquaredL2
from gradient_disclosure.attacks.reconstruction.gradient_matching import GradientMatching
from gradient_disclosure.attacks.reconstruction.initialization import NormalInitialization
from gradient_disclosure.attacks.reconstruction.labels import JointLabels, LabelRecovery
from gradient_disclosure.attacks.reconstruction.optimizers import LBFGS
from gradient_disclosure.attacks.reconstruction.priors import NoPrior
from gradient_disclosure.attacks.reconstruction.published import PublishedAttack


@dataclass(frozen=True)
class DLG(PublishedAttack):
    """Deep leakage from gradients (Zhu et al. 2019): squared gradient distance, L-BFGS, soft labels searched jointly.

    Unlike the published code it uses a line search, float64 and restarts, which make it stronger.

    Attributes:
        iterations: the most L-BFGS iterations of a restart.
        restarts: the most restarts.
        tolerance: relative squared gradient distance at which the attack stops.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
        >>> layer = nn.Linear(2, 3)
        >>> error = torch.tensor([0.2, 0.4, -0.6])
        >>> released = ReleasedGradient((error[:, None] * torch.tensor([0.5, 1.0]), error), batch_size=1)
        >>> result = DLG().reconstruct(layer, released, shape=(2,), num_classes=3, value_range=None,
        ...                            generator=torch.Generator().manual_seed(0))
        >>> result.labels, result.diverged
        (tensor([2]), False)
    """

    name: ClassVar[str] = "dlg"
    iterations: int = 150
    restarts: int = 3
    tolerance: float = 1e-8

    def parts(self, labels: LabelRecovery) -> GradientMatching:
        """Squared distance, no prior, normal initialization, L-BFGS."""
        return GradientMatching(
            name=self.name,
            distance=SquaredL2(),
            prior=NoPrior(),
            labels=labels,
            initialization=NormalInitialization(),
            optimizer=LBFGS(self.iterations),
            restarts=self.restarts,
            tolerance=self.tolerance,
        )

    def label_recovery(self, batch_size: int) -> LabelRecovery:
        """Jointly with the inputs."""
        return JointLabels()
