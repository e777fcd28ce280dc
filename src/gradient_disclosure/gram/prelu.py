"""PReLU: ``y = max(0, x) + w · min(0, x)``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

from gradient_disclosure.gram.registry import ParameterTerm, register_gram_terms
from gradient_disclosure.gram.terms import Dense


@register_gram_terms(nn.PReLU)
def prelu_terms(module: nn.PReLU, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Term of the slopes, one for all entries or one a channel (axis 1), from inputs and gradients (B, C, ...)."""
    if not module.weight.requires_grad:
        return
    gradient = e * x.clamp(max=0)
    channels = module.num_parameters
    by_channel = gradient.reshape(x.shape[0], channels, math.prod(x.shape[1:]) // channels)
    yield "weight", Dense(by_channel.sum(dim=2), tuple(module.weight.shape))
