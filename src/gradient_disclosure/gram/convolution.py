"""Convolutions in one, two and three dimensions: a linear layer on unfolded patches, one position an output pixel."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure.gram.registry import ParameterTerm, register_gram_terms
from gradient_disclosure.gram.terms import Dense, OuterProduct

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def patches(module: Convolution, x: Tensor) -> Tensor:
    """Unfold inputs (B, C, *space) into (B, groups, T, C/groups · kernel), T output positions in row-major order."""
    if len(module.kernel_size) == 2 and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        columns: Tensor = F.unfold(x, module.kernel_size, module.dilation, module.padding, module.stride)
        batch, width, count = columns.shape
        return columns.reshape(batch, module.groups, width // module.groups, count).transpose(2, 3)
    padding = module._reversed_padding_repeated_twice
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    if any(padding):
        x = F.pad(x, padding, mode=mode)
    dims = len(module.kernel_size)
    for axis, (kernel, stride, dilation) in enumerate(
        zip(module.kernel_size, module.stride, module.dilation, strict=True), start=2
    ):
        span = dilation * (kernel - 1) + 1
        x = x.unfold(axis, span, stride)[..., ::dilation]
    # x is now (B, C, *outputs, *kernel)
    outputs = tuple(range(2, 2 + dims))
    kernel_axes = tuple(range(2 + dims, 2 + 2 * dims))
    x = x.permute(0, *outputs, 1, *kernel_axes).flatten(1, dims)
    batch, count = x.shape[:2]
    return x.reshape(batch, count, module.groups, -1).transpose(1, 2)


@register_gram_terms(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def convolution_terms(module: Convolution, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of weight (out, in/groups, *kernel) and bias (out,) from inputs (B, in, *space)."""
    bias, e = e.flatten(2), e.flatten(2).transpose(1, 2)
    if module.weight.requires_grad:
        a = patches(module, x)
        shape = tuple(module.weight.shape)
        if module.groups == 1:
            yield "weight", OuterProduct(a[:, 0], e, shape)
        else:
            yield "weight", Dense(_grouped(a, e, module.groups), shape)
    if module.bias is not None and module.bias.requires_grad:
        yield "bias", Dense(bias.sum(dim=2), tuple(module.bias.shape))


def _grouped(a: Tensor, e: Tensor, groups: int) -> Tensor:
    """Per-example gradients (B, out · in/groups · kernel): each group is a layer of its own."""
    by_group = e.unflatten(2, (groups, -1)).permute(0, 2, 3, 1)
    return torch.matmul(by_group, a).flatten(1)
