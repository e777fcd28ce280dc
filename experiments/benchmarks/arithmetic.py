"""What the audit should cost by the arithmetic alone: operations of the chosen way over those of a plain step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Matrix:
    """A weight used at each of T positions.

    Attributes:
        n: inputs.
        m: outputs.
    """

    n: int
    m: int

    @property
    def entries(self) -> int:
        """Of the weight."""
        return self.n * self.m


def matrices(module: nn.Module) -> list[Matrix]:
    """The weights of all linear layers, Hugging Face's ``Conv1D`` among them, a tied one at each place it is used."""
    found = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            found.append(Matrix(layer.in_features, layer.out_features))
        elif type(layer).__name__ == "Conv1D" and isinstance(layer.weight, nn.Parameter):
            found.append(Matrix(*layer.weight.shape))
    return found


def plain_operations(layers: Sequence[Matrix], batch: int, positions: int) -> float:
    """``6 B T Σ mn``: forward, gradients of the inputs, gradients of the weights."""
    return 6.0 * batch * positions * sum(layer.entries for layer in layers)


def attention_operations(batch: int, positions: int, width: int, depth: int) -> float:
    """``12 B T² w`` a block: two products forward, four backward, of which a causal kernel may skip half."""
    return 12.0 * batch * positions**2 * width * depth


def pairs(layer: Matrix, batch: int, positions: int) -> float:
    """Pairs of positions: ``B² T² (n + m)``, the symmetry used."""
    return float(batch**2 * positions**2 * (layer.n + layer.m))


def untouched(layer: Matrix, batch: int, positions: int) -> float:
    """The cheaper of pairs and of forming each example's gradient beside autograd: ``2BTmn + B²mn``."""
    blocks = 2.0 * batch * positions * layer.entries + batch**2 * layer.entries
    return min(blocks, pairs(layer, batch, positions))


def reuse(layer: Matrix, batch: int, positions: int) -> float:
    """As ``untouched``, but the examples' gradients are formed in place of their sum: ``B²mn + Bmn``."""
    return min(float((batch**2 + batch) * layer.entries), pairs(layer, batch, positions))


EXTRA = {"untouched": untouched, "reuse": reuse}


def predicted_ratios(
    layers: Sequence[Matrix], batch: int, positions: int, attention: float = 0.0
) -> Mapping[str, float]:
    """Operations of an audited step over those of a plain one (shared/spec/gnq.md, Cost), by way.

    Args:
        layers: weights of the model.
        batch: B.
        positions: T.
        attention: operations of the plain step beside those of the weights.

    Example:
        >>> found = predicted_ratios([Matrix(768, 3072)], batch=16, positions=128)
        >>> {way: round(ratio, 3) for way, ratio in found.items()}
        {'untouched': 1.354, 'reuse': 1.022}
    """
    plain = plain_operations(layers, batch, positions) + attention
    return {way: 1.0 + sum(extra(layer, batch, positions) for layer in layers) / plain for way, extra in EXTRA.items()}
