"""Hands weight gradients that were computed elsewhere to autograd, which then need not form them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_map_only

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.shared import tensors_of

Resolve = Callable[[Sequence[Tensor | None]], Sequence[Tensor | None]]
"""Gradients of a layer's outputs → gradients of its parameters."""


class Delivery(torch.autograd.Function):
    """The identity on a layer's outputs; its backward pass adds the gradients of the layer's parameters.

    The layer itself ran as if its parameters needed no gradient. They get it here, through autograd: hooks,
    accumulation and data-parallel reducers see it as any other.
    """

    @staticmethod
    def forward(ctx: Any, resolve: Resolve, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """``tensors``: ``count`` outputs, then the parameters. Returns the outputs."""
        ctx.set_materialize_grads(False)
        ctx.resolve = resolve
        return tuple(tensor.detach() for tensor in tensors[:count])  # no views: they may be changed in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        """Gradients of the outputs as they came, and of the parameters."""
        resolve, ctx.resolve = ctx.resolve, None  # what it holds is not needed any more
        if resolve is None:
            raise IncompleteGramError(
                "a second backward pass through one forward pass: mode='reuse' computes the weights' gradients once. "
                "Add losses up before backward(), or use mode='untouched'."
            )
        return None, None, *gradients, *resolve(gradients)


def delivered(output: Any, parameters: Sequence[nn.Parameter], resolve: Resolve) -> Any:
    """A layer's output, through which ``parameters`` get the gradients that ``resolve`` computes.

    Args:
        output: any nested structure; its floating-point tensors are replaced.
        parameters: of the layer.
        resolve: gradients of the floating-point tensors of ``output`` → gradients of ``parameters``; called once.

    Returns:
        The same structure.
    """
    outputs = _differentiable(output)
    found = iter(Delivery.apply(resolve, len(outputs), *outputs, *parameters))
    return tree_map_only(Tensor, lambda t: next(found) if t.is_floating_point() else t, output)


def _differentiable(output: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_of(output) if tensor.is_floating_point()]


def can_deliver(layer: nn.Module) -> bool:
    """Whether a layer's weight gradients may come from elsewhere: nobody watches its backward pass, none is sparse."""
    watched = any(child._backward_hooks or child._backward_pre_hooks for child in layer.modules())
    return not watched and not getattr(layer, "sparse", False)
