"""Whether one example acts on the output of another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST_ROUNDING = 1e-6


def mixes_examples(outputs: Sequence[Tensor], sources: Sequence[Tensor], batch_size: int | None) -> bool:
    """Whether the outputs of one half of the examples have a gradient at the rows of the other half.

    Args:
        outputs: computed from ``sources``; those with B rows are looked at.
        sources: earlier tensors of the same graph; those with k·B rows, k consecutive ones an example, are looked at.
        batch_size: B.

    Returns:
        True if they do. Nothing can be said, and False is returned, for B < 2, if no tensor qualifies, or if the graph
        cannot be run backwards before the real backward pass (reentrant checkpointing).

    Example:
        >>> import torch
        >>> x = torch.randn(4, 3, requires_grad=True)
        >>> mixes_examples([2 * x], [x], 4), mixes_examples([x - x.mean(0)], [x], 4)
        (False, True)
    """
    if not batch_size or batch_size < 2:
        return False
    ends = [t for t in outputs if t.requires_grad and t.dim() and t.shape[0] == batch_size and t.is_floating_point()]
    starts = [t for t in sources if t.dim() and t.shape[0] and t.shape[0] % batch_size == 0]
    if not ends or not starts:
        return False
    half = batch_size // 2
    try:
        return any(_crosses(ends, starts, batch_size, kept) for kept in (slice(0, half), slice(half, None)))
    except RuntimeError:
        return False


def _crosses(ends: list[Tensor], starts: list[Tensor], batch_size: int, kept: slice) -> bool:
    """Whether the outputs of some examples have a gradient at the rows of the others."""
    cotangents = []
    for end in ends:
        uneven = torch.arange(end.numel(), device=end.device, dtype=torch.float32).add(0.3).cos()
        cotangent = torch.zeros_like(end)
        cotangent[kept] = uneven.reshape(end.shape)[kept].to(end.dtype)
        cotangents.append(cotangent)
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        ends, starts, cotangents, retain_graph=True, allow_unused=True
    )
    return any(_goes_beyond(gradient, batch_size, kept) for gradient in found if gradient is not None)


def _goes_beyond(gradient: Tensor, batch_size: int, kept: slice) -> bool:
    size = gradient.abs().nan_to_num(0.0).reshape(batch_size, -1)
    largest = float(size.max())
    size[kept] = 0.0
    return float(size.max()) > LARGEST_ROUNDING * largest
