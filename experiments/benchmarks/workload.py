"""One training step's ingredients: a module, a batch, a loss that is a mean over examples, an optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer


def as_they_are(outputs: Any) -> Any:
    """The logits of a module that returns nothing else."""
    return outputs


@dataclass(frozen=True)
class Workload:
    """What one training step works on.

    Attributes:
        module: in training mode.
        inputs: (B, ...) what the module is called with.
        targets: (B,) or (B, T) classes.
        optimizer: of all parameters of the module.
        logits: from the module's return value to (B, [T,] classes).
    """

    module: nn.Module
    inputs: Tensor
    targets: Tensor
    optimizer: Optimizer
    logits: Callable[[Any], Tensor] = as_they_are

    @property
    def batch_size(self) -> int:
        """Number of examples B."""
        return len(self.inputs)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters, each once."""
        return [p for p in self.module.parameters() if p.requires_grad]

    @property
    def gradient_bytes(self) -> int:
        """Size of one gradient over all trainable parameters."""
        return sum(p.numel() * p.element_size() for p in self.parameters)

    def in_float64(self, examples: int) -> Workload:
        """The same on its first few examples, in float64; the module is a copy."""
        module = copy.deepcopy(self.module).double()
        inputs = self.inputs[:examples]
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        return replace(
            self,
            module=module,
            inputs=inputs,
            targets=self.targets[:examples],
            optimizer=torch.optim.SGD(module.parameters(), lr=0.0),
        )

    def loss(self, rows: slice = slice(None)) -> Tensor:
        """Mean cross-entropy of some of the examples."""
        return self.loss_of(self.module(self.inputs[rows]), self.targets[rows])

    def loss_of(self, outputs: Any, targets: Tensor) -> Tensor:
        """Mean cross-entropy from what the module returned. All examples have as many targets, so they weigh alike."""
        logits = self.logits(outputs)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """Dropout off while the module stays in training mode: ways that draw masks in another order can be compared."""
    layers = [m for m in module.modules() if isinstance(m, nn.Dropout)]
    rates = [m.p for m in layers]
    try:
        for layer in layers:
            layer.p = 0.0
        yield
    finally:
        for layer, rate in zip(layers, rates, strict=True):
            layer.p = rate
