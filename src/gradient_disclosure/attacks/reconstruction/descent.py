"""One restart of an attack: the dummy batch being moved, and the best one so far by the attacker's own loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradient_disclosure.attacks.reconstruction.scale import InputScale

Objective = Callable[[Sequence[Tensor]], tuple[Tensor, Tensor]]


class Descent:
    """Variables, their objective and the best point seen; a point whose loss is NaN or infinite is never the best.

    Args:
        variables: leaf tensors; the first holds the input coordinates.
        objective: gives the gradient distance and the prior's penalty (scalars) at the variables.
        scale: whether and where the coordinates are bounded.
        tolerance: gradient distance at which the batch counts as found.

    Attributes:
        variables: the tensors that an optimizer moves.
        loss: distance plus penalty at the best point; infinite before the first finite evaluation.
        distance: gradient distance there.
        best: copies of the variables there; None before the first finite evaluation.

    Example:
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> descent = Descent([x], lambda v: (v[0].square().sum(), torch.zeros(())), InputScale.of(None), 0.0)
        >>> descent.evaluate().item(), x.grad.item(), descent.loss
        (9.0, 6.0, 9.0)
    """

    def __init__(self, variables: list[Tensor], objective: Objective, scale: InputScale, tolerance: float) -> None:
        self.variables = variables
        self._objective = objective
        self._scale = scale
        self._tolerance = tolerance
        self.loss = math.inf
        self.distance = math.inf
        self.best: list[Tensor] | None = None

    @property
    def solved(self) -> bool:
        """Whether the best point's gradient is within the tolerance of the released one."""
        return self.distance <= self._tolerance

    def evaluate(self) -> Tensor:
        """Loss at the variables, a detached scalar; leaves its gradient in their ``.grad``."""
        distance, penalty = self._objective(self.variables)
        loss = distance + penalty
        for variable, gradient in zip(self.variables, torch.autograd.grad(loss, self.variables), strict=True):
            variable.grad = gradient
        value = loss.item()
        if value < self.loss:
            self.loss, self.distance = value, distance.item()
            self.best = [variable.detach().clone() for variable in self.variables]
        return loss.detach()

    def project(self) -> None:
        """Moves the input coordinates to the nearest point of the value range."""
        with torch.no_grad():
            self.variables[0].copy_(self._scale.clamp(self.variables[0]))
