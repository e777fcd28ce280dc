"""What the victim computes: the gradient of a batch, without leaving a trace on its module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradient_disclosure.attacks.errors import AttackInputError


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Puts every submodule in eval mode and turns autograd on; afterwards each submodule's own mode is restored.

    Args:
        module: any module.

    Yields:
        Nothing.

    Example:
        >>> dropout = nn.Dropout()
        >>> with evaluation_mode(dropout):
        ...     dropout.training
        False
        >>> dropout.training
        True
    """
    modes = [(submodule, submodule.training) for submodule in module.modules()]
    try:
        module.eval()
        # Trainers call back from no_grad or inference_mode, where no gradient could be taken.
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for submodule, training in modes:
            submodule.training = training


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters a gradient is released for, in ``named_parameters`` order.

    Args:
        module: any module.

    Returns:
        Name to parameter, without the frozen ones.

    Raises:
        AttackInputError: every parameter is frozen.

    Example:
        >>> list(trainable_parameters(nn.Linear(2, 1)))
        ['weight', 'bias']
    """
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if not trainable:
        raise AttackInputError(f"{type(module).__name__} has no trainable parameter, so no gradient is ever released.")
    return trainable


def gradient_of_batch(
    module: nn.Module, inputs: Tensor, labels: Tensor, *, create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Gradient of the mean cross entropy of a batch with respect to the trainable parameters.

    The module is evaluated in eval mode (no dropout, running statistics) and its modes are restored; no ``.grad`` is
    touched.

    Args:
        module: network whose ``module(inputs)`` gives logits (B, C).
        inputs: (B, *shape), on the module's device and of its dtype.
        labels: (B,) int64 class indices, or (B, C) class probabilities.
        create_graph: keep the graph, so that the result can be differentiated with respect to inputs or labels.

    Returns:
        One tensor for each trainable parameter, in ``named_parameters`` order; zeros where one has no influence.

    Raises:
        AttackInputError: no parameter is trainable.

    Example:
        >>> layer = nn.Linear(1, 2)
        >>> weight, bias = gradient_of_batch(layer, torch.ones(3, 1), torch.tensor([0, 1, 1]))
        >>> weight.shape, bool(bias.sum().abs() < 1e-6)
        (torch.Size([2, 1]), True)
    """
    parameters = list(trainable_parameters(module).values())
    with evaluation_mode(module):
        inputs, labels = (t.clone() if t.is_inference() else t for t in (inputs, labels))
        loss = F.cross_entropy(module(inputs), labels)
        return torch.autograd.grad(
            loss, parameters, create_graph=create_graph, allow_unused=True, materialize_grads=True
        )
