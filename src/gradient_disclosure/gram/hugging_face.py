"""Layers of Hugging Face's transformers, registered by name so that the library itself is not needed."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from gradient_disclosure.gram.linear import positions
from gradient_disclosure.gram.registry import ParameterTerm, register_gram_terms
from gradient_disclosure.gram.terms import Dense, OuterProduct


@register_gram_terms("transformers.pytorch_utils.Conv1D")
def conv1d_terms(module: nn.Module, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of GPT-2's linear layer ``y = x W + b``: weight (in, out), the transpose of ``nn.Linear``'s, and bias."""
    e = positions(e)
    weight, bias = module.get_parameter("weight"), module.get_parameter("bias")
    if weight.requires_grad:
        yield "weight", OuterProduct(e, positions(x), tuple(weight.shape))
    if bias.requires_grad:
        yield "bias", Dense(e.sum(dim=1), tuple(bias.shape))
