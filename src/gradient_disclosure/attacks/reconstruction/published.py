"""What the published attacks share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.attack import Progress, Reconstruction
from gradient_disclosure.attacks.reconstruction.gradient_matching import GradientMatching
from gradient_disclosure.attacks.reconstruction.labels import KnownLabels, LabelRecovery
from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient


@dataclass(frozen=True)
class PublishedAttack(ABC):
    """A named choice of parts of the gradient matching attack, with a budget.

    Attributes:
        name: name in metric keys, e.g. "dlg".
        iterations: the most iterations of a restart.
        restarts: the most restarts; the best by the attacker's own loss is kept.
    """

    name: ClassVar[str]
    iterations: int
    restarts: int

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.restarts < 1:
            raise AttackInputError(
                f"{self.name} needs at least 1 iteration and 1 restart, not {self.iterations} and {self.restarts}."
            )

    @abstractmethod
    def parts(self, labels: LabelRecovery) -> GradientMatching:
        """The attack, put together from its parts.

        Args:
            labels: how the labels are found.
        """

    @abstractmethod
    def label_recovery(self, batch_size: int) -> LabelRecovery:
        """How the attack finds the labels of a batch of this size when it is not told them."""

    def reconstruct(
        self,
        module: nn.Module,
        released: ReleasedGradient,
        *,
        shape: tuple[int, ...],
        num_classes: int,
        value_range: tuple[float, float] | None,
        generator: torch.Generator,
        labels: Tensor | None = None,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Searches for the batch behind a released gradient.

        Args:
            module: network whose ``module(inputs)`` gives logits, with the weights the gradient was taken at.
            released: the gradient exactly as the defense releases it.
            shape: shape of one input.
            num_classes: number of labels.
            value_range: smallest and largest value of an input; None where not known.
            generator: source of every random number.
            labels: (B,) int64, only where the attacker knows them from elsewhere.
            progress: called with the fraction done, in [0, 1].

        Returns:
            The best of the restarts by the attacker's own loss; the module stays as it was.

        Raises:
            AttackInputError: the gradient is of another model, is zero, or the settings do not fit the module.
            NonFiniteGradientError: the released gradient holds NaN or infinity.
        """
        recovery = self.label_recovery(released.batch_size) if labels is None else KnownLabels(labels)
        return self.parts(recovery).reconstruct(
            module,
            released,
            shape=shape,
            num_classes=num_classes,
            value_range=value_range,
            generator=generator,
            progress=progress,
        )
