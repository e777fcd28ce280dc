"""Convolutions in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure.gram.correlation import Correlation, Geometry
from gradient_disclosure.gram.registry import ParameterTerm, register_gram_terms
from gradient_disclosure.gram.terms import Dense, OuterProduct

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


MOST_GROUPS = 4
"""With more groups than this the weight is small, and all groups' gradients are formed together."""


@register_gram_terms(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution_terms(module: Convolution, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of weight (out, in/groups, *kernel) and bias (out,) from inputs (B, in, *space)."""
    shape = tuple(module.weight.shape)
    if module.bias is not None and module.bias.requires_grad:
        yield "bias", Dense(e.flatten(2).sum(dim=2), tuple(module.bias.shape))
    if not module.weight.requires_grad:
        return
    if max(module.kernel_size) == max(module.stride) == 1 and module.groups == 1 and not any(_padding(module)):
        yield "weight", OuterProduct(x.flatten(2).transpose(1, 2), e.flatten(2).transpose(1, 2), shape)
        return
    if module.padding_mode != "zeros":
        x = F.pad(x, _padding(module), mode=module.padding_mode)
    term = Correlation(x.unsqueeze(1), e.unsqueeze(1), _geometry(module), module.groups, shape)
    yield "weight", term if module.groups <= MOST_GROUPS else Dense(_grouped(term), shape)


def _padding(module: Convolution) -> list[int]:
    """(before, after) of each spatial axis, the last axis first."""
    return list(module._reversed_padding_repeated_twice)


def _geometry(module: Convolution) -> Geometry:
    own = _padding(module) if module.padding_mode == "zeros" else [0] * 2 * len(module.kernel_size)
    padding = tuple(zip(own[::2], own[1::2], strict=True))[::-1]
    return Geometry(tuple(module.kernel_size), tuple(module.stride), tuple(module.dilation), padding)


def _grouped(term: Correlation) -> Tensor:
    """Per-example gradients (B, out · in/groups · kernel): each group is a layer of its own."""
    outputs = term.e[:, 0].unflatten(1, (term.groups, -1)).flatten(3)
    found = []
    for window in term.windows():
        inputs = window.unflatten(1, (term.groups, -1)).flatten(3)
        if outputs.shape[2] == inputs.shape[2] == 1:
            found.append((outputs * inputs).sum(dim=3, keepdim=True))
        else:
            found.append(torch.matmul(outputs, inputs.transpose(2, 3)))
    return torch.stack(found, dim=-1).flatten(1)
