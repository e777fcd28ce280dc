"""Logits of many examples, in batches, without touching the module's state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Puts a module into eval mode, and each of its parts back into the mode it had.

    Example:
        >>> layer = nn.Dropout()
        >>> with evaluating(layer):
        ...     print(layer.training)
        False
        >>> layer.training
        True
    """
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@torch.no_grad()
def predict_logits(module: nn.Module, inputs: Tensor, *, batch_size: int = 512) -> Tensor:
    """Logits in eval mode and without gradients; the module's modes are restored afterwards.

    Args:
        module: a network from (B, *shape) to logits (B, C).
        inputs: (N, *shape), on any device; moved to the module's device batch by batch.
        batch_size: inputs that are forwarded at once.

    Returns:
        (N, C) logits, on the device of `inputs`.

    Example:
        >>> predict_logits(nn.Linear(3, 2), torch.zeros(5, 3), batch_size=2).shape
        torch.Size([5, 2])
    """
    parameter = next(module.parameters(), None)
    device = inputs.device if parameter is None else parameter.device
    with evaluating(module):
        return torch.cat([module(batch.to(device)).to(inputs.device) for batch in torch.split(inputs, batch_size)])
