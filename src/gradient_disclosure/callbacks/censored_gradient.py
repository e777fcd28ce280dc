"""The gradient of a step without the examples that a censor drops."""

from __future__ import annotations

import torch
from torch import Tensor

from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.options import LossReduction


def keep_only(observed: GradientGram, kept: Tensor, reduction: LossReduction) -> None:
    """Make the gradient that of the batch without the examples not kept: the mean (or sum) over those kept.

    With nobody left every gradient is None, which every torch optimizer takes as "no step": moments and weight decay
    rest.

    Args:
        observed: the step's open context.
        kept: (K,) positions in the batch.
        reduction: how the training loss reduces.
    """
    if kept.numel() == 0:
        for parameter in observed.parameters:
            parameter.grad = None
        return
    weights = torch.zeros(observed.batch_size, dtype=torch.float64)
    weights[kept] = 1.0 / kept.numel() if reduction == "mean" else 1.0
    for parameter, gradient in observed.weighted_gradient(weights):
        parameter.grad = gradient
