"""How an attack comes by the labels of the batch it reconstructs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.attacks.reconstruction.victim import trainable_parameters


class LabelRecovery(Protocol):
    """Finds the labels from the released gradient, before the search for the inputs."""

    def recover(self, module: nn.Module, released: ReleasedGradient, num_classes: int) -> Tensor | None:
        """Labels (B,) int64, or None where the search is to find them together with the inputs."""
        ...


@dataclass(frozen=True)
class JointLabels:
    """No recovery: soft labels are searched for together with the inputs (Zhu et al. 2019).

    Example:
        >>> JointLabels().recover(nn.Linear(1, 2), ReleasedGradient((), 1), 2) is None
        True
    """

    def recover(self, module: nn.Module, released: ReleasedGradient, num_classes: int) -> Tensor | None:
        """None."""
        return None


@dataclass(frozen=True, eq=False)
class KnownLabels:
    """Labels that the attacker knows from elsewhere.

    Attributes:
        labels: (B,) int64.

    Example:
        >>> released = ReleasedGradient((), batch_size=1)
        >>> KnownLabels(torch.tensor([1])).recover(nn.Linear(1, 2), released, 2)
        tensor([1])
    """

    labels: Tensor

    def recover(self, module: nn.Module, released: ReleasedGradient, num_classes: int) -> Tensor | None:
        """The labels, after a check that they are class indices, one for each example of the batch."""
        labels = self.labels
        if labels.dtype != torch.int64 or tuple(labels.shape) != (released.batch_size,):
            raise AttackInputError(
                f"labels must be int64 of shape ({released.batch_size},), one for each example of the batch, not"
                f" {labels.dtype} of shape {tuple(labels.shape)}."
            )
        if not bool(((labels >= 0) & (labels < num_classes)).all()):
            raise AttackInputError(f"labels must lie in [0, {num_classes}), but they are {labels.tolist()}.")
        return labels


@dataclass(frozen=True)
class AnalyticLabel:
    """The label of a single example, read off the output layer's gradient (Zhao et al. 2020, "iDLG").

    The gradient of the cross entropy with respect to the logits is p − y: negative for the true class alone. It is the
    bias gradient of the output layer, and the rows of its weight gradient are multiples of it. Clipping keeps its sign;
    noise may hide it.

    Example:
        >>> bias = torch.tensor([0.3, -0.9, 0.6])
        >>> released = ReleasedGradient((bias[:, None] * torch.ones(1, 2), bias), batch_size=1)
        >>> AnalyticLabel().recover(nn.Linear(2, 3), released, 3)
        tensor([1])
    """

    def recover(self, module: nn.Module, released: ReleasedGradient, num_classes: int) -> Tensor | None:
        """The label, (1,) int64; AttackInputError where the batch is larger or there is no usable output layer."""
        if released.batch_size != 1:
            raise AttackInputError(
                f"the analytic label exists for a single example, but the released batch has {released.batch_size}: use"
                " DLG, which searches for the labels too, or pass labels=."
            )
        weight, bias = _output_layer_gradients(module, released, num_classes)
        if bias is not None:
            return bias.argmin().reshape(1)
        if weight is None or num_classes < 3:
            raise AttackInputError(
                f"no label can be read off the gradient: {type(module).__name__} has no trainable linear layer with"
                f" {num_classes} outputs{' and a bias' if weight is not None else ''}. Use DLG, or pass labels=."
            )
        # Row c is (p_c - y_c) times the features: only the true class's row points against all the others.
        agreement = weight @ weight.T
        return (agreement.sum(1) - agreement.diagonal()).argmin().reshape(1)


def _output_layer_gradients(
    module: nn.Module, released: ReleasedGradient, num_classes: int
) -> tuple[Tensor | None, Tensor | None]:
    """Released gradients of the weight and the bias of the last linear layer with one output a class."""
    gradients = {
        id(parameter): gradient
        for parameter, gradient in zip(trainable_parameters(module).values(), released.gradients, strict=True)
    }
    layers = [m for m in module.modules() if isinstance(m, nn.Linear) and m.out_features == num_classes]
    if not layers:
        return None, None
    return gradients.get(id(layers[-1].weight)), gradients.get(id(layers[-1].bias))
