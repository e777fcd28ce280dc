"""Normalization layers: ``y = γ x̂ + β``, x̂ free of parameters, so the per-example gradient is small and dense."""

from __future__ import annotations

from collections.abc import Iterator

import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure.errors import BatchCouplingError
from gradient_disclosure.gram.registry import ParameterTerm, register_gram_terms
from gradient_disclosure.gram.terms import Dense

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d
BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def _affine(module: nn.Module, normalized: Tensor, e: Tensor, shared: tuple[int, ...]) -> Iterator[ParameterTerm]:
    """Terms of ``weight`` and ``bias`` that act elementwise, summed over the axes ``shared`` by one entry."""
    for name, gradient in (("weight", e * normalized), ("bias", e)):
        parameter = getattr(module, name, None)
        if parameter is not None and parameter.requires_grad:
            summed = gradient.sum(dim=shared) if shared else gradient
            yield name, Dense(summed.flatten(1), tuple(parameter.shape))


def _refuse_normalized_batch(module: nn.LayerNorm | nn.RMSNorm, x: Tensor) -> None:
    if len(module.normalized_shape) >= x.dim():
        raise BatchCouplingError(
            f"it normalizes over {tuple(module.normalized_shape)}, all axes of its input, the batch among them: one "
            "example has no gradient of its own. Normalize over the feature axes alone."
        )


@register_gram_terms(nn.LayerNorm)
def layer_norm_terms(module: nn.LayerNorm, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of γ and β (*normalized_shape) from inputs and output gradients (B, ..., *normalized_shape)."""
    _refuse_normalized_batch(module, x)
    normalized = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    yield from _affine(module, normalized, e, tuple(range(1, x.dim() - len(module.normalized_shape))))


@register_gram_terms(nn.RMSNorm)
def rms_norm_terms(module: nn.RMSNorm, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of the gain (*normalized_shape) from inputs and output gradients (B, ..., *normalized_shape)."""
    _refuse_normalized_batch(module, x)
    normalized = F.rms_norm(x, module.normalized_shape, eps=module.eps)
    yield from _affine(module, normalized, e, tuple(range(1, x.dim() - len(module.normalized_shape))))


@register_gram_terms(nn.GroupNorm)
def group_norm_terms(module: nn.GroupNorm, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of γ and β (C,) from inputs and output gradients (B, C, *space)."""
    normalized = F.group_norm(x, module.num_groups, eps=module.eps)
    yield from _affine(module, normalized, e, tuple(range(2, x.dim())))


@register_gram_terms(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def instance_norm_terms(module: InstanceNorm, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of γ and β (C,) from inputs and output gradients (B, C, *space)."""
    own_statistics = module.training or not module.track_running_stats
    normalized = F.instance_norm(
        x, module.running_mean, module.running_var, use_input_stats=own_statistics, momentum=0.0, eps=module.eps
    )
    yield from _affine(module, normalized, e, tuple(range(2, x.dim())))


@register_gram_terms(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def frozen_batch_norm_terms(module: BatchNorm, x: Tensor, e: Tensor) -> Iterator[ParameterTerm]:
    """Terms of γ and β (C,) of a batch norm in EVAL mode, which uses running statistics and couples no examples."""
    assert module.running_mean is not None
    assert module.running_var is not None
    mean, variance = module.running_mean.to(x.dtype), module.running_var.to(x.dtype)
    normalized = F.batch_norm(x, mean, variance, training=False, eps=module.eps)
    yield from _affine(module, normalized, e, tuple(range(2, x.dim())))
