"""The gradient matching attack: find the batch whose gradient is the released one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.attack import UNKNOWN_LABEL, Progress, Reconstruction
from gradient_disclosure.attacks.reconstruction.attacker import Attacker
from gradient_disclosure.attacks.reconstruction.descent import Descent
from gradient_disclosure.attacks.reconstruction.distances import GradientDistance
from gradient_disclosure.attacks.reconstruction.initialization import Initialization
from gradient_disclosure.attacks.reconstruction.labels import LabelRecovery
from gradient_disclosure.attacks.reconstruction.optimizers import MatchingOptimizer
from gradient_disclosure.attacks.reconstruction.priors import InputPrior
from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.attacks.reconstruction.scale import InputScale
from gradient_disclosure.attacks.reconstruction.victim import evaluation_mode


@dataclass(frozen=True)
class GradientMatching:
    """A gradient matching attack put together from its parts.

    Attributes:
        name: name in metric keys.
        distance: between the dummy's gradient and the released one.
        prior: penalty for unlikely inputs.
        labels: how the labels are found.
        initialization: where a restart begins.
        optimizer: how the dummy batch is moved.
        restarts: the most restarts; the best by the attacker's own loss is kept.
        tolerance: gradient distance at which the batch counts as found and the attack stops.

    Example:
        >>> from gradient_disclosure.attacks.reconstruction.distances import SquaredL2
        >>> from gradient_disclosure.attacks.reconstruction.initialization import UniformInitialization
        >>> from gradient_disclosure.attacks.reconstruction.labels import AnalyticLabel
        >>> from gradient_disclosure.attacks.reconstruction.optimizers import LBFGS
        >>> from gradient_disclosure.attacks.reconstruction.priors import TotalVariation
        >>> attack = GradientMatching("smooth_idlg", SquaredL2(), TotalVariation(1e-6), AnalyticLabel(),
        ...                           UniformInitialization(), LBFGS(50), restarts=1, tolerance=1e-8)
        >>> attack.name
        'smooth_idlg'
    """

    name: str
    distance: GradientDistance
    prior: InputPrior
    labels: LabelRecovery
    initialization: Initialization
    optimizer: MatchingOptimizer
    restarts: int
    tolerance: float

    def reconstruct(
        self,
        module: nn.Module,
        released: ReleasedGradient,
        *,
        shape: tuple[int, ...],
        num_classes: int,
        value_range: tuple[float, float] | None,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Reconstruction:
        """Searches for the batch behind a released gradient.

        The attacker sees the module's weights, the released gradient and what ``released`` says of the defense; it
        computes in float64 on a copy of the weights, and the module's parameters and modes stay as they were.

        Args:
            module: network whose ``module(inputs)`` gives logits, with the weights the gradient was taken at.
            released: the gradient exactly as the defense releases it.
            shape: shape of one input.
            num_classes: number of labels.
            value_range: smallest and largest value of an input; None where not known.
            generator: source of every random number.
            progress: called with the fraction done, in [0, 1].

        Returns:
            The best of the restarts by the attacker's own loss.

        Raises:
            AttackInputError: the gradient is of another model, is zero, or the settings do not fit the module.
            NonFiniteGradientError: the released gradient holds NaN or infinity.
        """
        scale = InputScale.of(value_range)
        descents: list[Descent] = []
        with evaluation_mode(module):
            attacker = Attacker(module, released)
            labels = self.labels.recover(module, released, num_classes)
            labels = None if labels is None else labels.to(attacker.device, copy=True)
            _check_logits(attacker, shape, num_classes)
            for restart in range(self.restarts):
                descent = self._begin(attacker, scale, labels, shape, num_classes, generator)
                self.optimizer.run(descent, _share(progress, restart, self.restarts))
                descents.append(descent)
                if descent.solved:
                    break
        if progress is not None:
            progress(1.0)
        return _best(descents, scale, labels, shape)

    def _begin(
        self,
        attacker: Attacker,
        scale: InputScale,
        labels: Tensor | None,
        shape: tuple[int, ...],
        num_classes: int,
        generator: torch.Generator,
    ) -> Descent:
        """A descent from a fresh random dummy batch."""
        variables = [self.initialization((attacker.batch_size, *shape), generator)]
        if labels is None:
            variables.append(torch.zeros(attacker.batch_size, num_classes, dtype=torch.float64))

        def objective(at: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            targets = at[1].softmax(1) if labels is None else labels
            dummy = attacker.gradient(scale.to_inputs(at[0]), targets)
            return self.distance(dummy, attacker.released), self.prior(at[0])

        leaves = [variable.to(attacker.device).requires_grad_() for variable in variables]
        return Descent(leaves, objective, scale, self.tolerance)


def _check_logits(attacker: Attacker, shape: tuple[int, ...], num_classes: int) -> None:
    """One forward pass tells whether shape and num_classes are the module's."""
    inputs = torch.zeros(attacker.batch_size, *shape, dtype=torch.float64, device=attacker.device)
    try:
        with torch.no_grad():
            logits = attacker.logits(inputs)
    except RuntimeError as error:
        raise AttackInputError(
            f"the module cannot be evaluated on float64 inputs of shape {tuple(inputs.shape)}: {error}"
        ) from error
    if tuple(logits.shape) != (attacker.batch_size, num_classes):
        raise AttackInputError(
            f"module(inputs) must give logits of shape (batch, num_classes) = ({attacker.batch_size}, {num_classes}),"
            f" but gives {tuple(logits.shape)} for inputs of shape {tuple(inputs.shape)}."
        )


def _share(progress: Progress | None, restart: int, restarts: int) -> Progress:
    """Progress within one restart as progress of the whole attack."""
    if progress is None:
        return lambda fraction: None
    return lambda fraction: progress((restart + fraction) / restarts)


def _best(descents: list[Descent], scale: InputScale, labels: Tensor | None, shape: tuple[int, ...]) -> Reconstruction:
    """The descent with the smallest loss; mid-range inputs where none has one."""
    losses = tuple(descent.loss for descent in descents)
    winner = min(descents, key=lambda descent: descent.loss)
    batch_size = len(winner.variables[0])
    if winner.best is None:
        inputs = scale.to_inputs(torch.zeros(batch_size, *shape))
        unknown = torch.full((batch_size,), UNKNOWN_LABEL)
        return Reconstruction(inputs, unknown if labels is None else labels.cpu(), math.inf, losses, diverged=True)
    inputs = scale.to_inputs(scale.clamp(winner.best[0])).to("cpu", torch.float32)
    found = winner.best[1].argmax(1) if labels is None else labels
    return Reconstruction(inputs, found.cpu(), winner.loss, losses, diverged=False)
