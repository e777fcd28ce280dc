"""Linear layers: ``y = a Wᵀ + b`` at every position."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from gradient_disclosure.gram.registry import ParameterTerm, register_gram_terms
from gradient_disclosure.gram.terms import Dense, OuterProduct


def positions(x: Tensor) -> Tensor:
    """(B, ..., n) → (B, T, n): everything between batch and features is a position."""
    return x.unsqueeze(1) if x.dim() == 2 else x.flatten(1, -2)


@register_gram_terms(nn.Linear)
def linear_terms(module: nn.Linear, a: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of weight (out, in) and bias (out,) from inputs (B, ..., in) and output gradients (B, ..., out)."""
    e = positions(e)
    if module.weight.requires_grad:
        yield "weight", OuterProduct(positions(a), e, tuple(module.weight.shape))
    if module.bias is not None and module.bias.requires_grad:
        yield "bias", Dense(e[:, 0] if e.shape[1] == 1 else e.sum(dim=1), tuple(module.bias.shape))
