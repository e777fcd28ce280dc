"""Whether one example acts on the output of another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LARGEST_ROUNDING = 1e-6


def mixes_examples(outputs: Sequence[Tensor], sources: Sequence[tuple[Tensor, int]], batch_size: int | None) -> bool:
    """Whether the outputs of some examples have a gradient at the rows of others.

    Half of the examples, drawn at random, get a gradient at their outputs; none may arrive at the rows of the other
    half. One backward pass; the generators are afterwards as if it had not been run.

    Args:
        outputs: computed from ``sources``; those with B rows are looked at. If a source holds the examples on another
            axis than the first, outputs may too: they mix if they do both ways.
        sources: earlier tensors of the same graph with the axis along which they hold the examples, k·B rows there,
            k consecutive ones an example.
        batch_size: B.

    Returns:
        True if they do. Nothing can be said, and False is returned, for B < 2, if no tensor qualifies, or if the graph
        cannot be run backwards before the real backward pass (reentrant checkpointing).

    Example:
        >>> import torch
        >>> x = torch.randn(4, 3, requires_grad=True)
        >>> mixes_examples([2 * x], [(x, 0)], 4), mixes_examples([x - x.mean(0)], [(x, 0)], 4)
        (False, True)
    """
    if not batch_size or batch_size < 2:
        return False
    starts = [(t, axis) for t, axis in sources if t.dim() > axis and t.shape[axis] and t.shape[axis] % batch_size == 0]
    axes = sorted({0} | {axis for _, axis in starts})
    devices = sorted({t.device.index for t in outputs if t.device.type == "cuda"})
    kept = torch.randperm(batch_size, generator=torch.Generator().manual_seed(batch_size))[: batch_size // 2]
    with torch.random.fork_rng(devices=devices):
        try:
            found = [_crosses(outputs, axis, starts, batch_size, kept) for axis in axes]
        except RuntimeError:
            return False
    known = [crosses for crosses in found if crosses is not None]
    return bool(known) and all(known)


def _crosses(
    outputs: Sequence[Tensor], output_axis: int, starts: list[tuple[Tensor, int]], batch_size: int, kept: Tensor
) -> bool | None:
    """Whether gradients cross over, None where no output has ``batch_size`` entries on ``output_axis``."""
    ends = [t for t in outputs if t.requires_grad and t.dim() > output_axis and t.shape[output_axis] == batch_size]
    if not ends or not starts:
        return None
    cotangents = []
    for end in ends:
        uneven = torch.arange(end.numel(), device=end.device, dtype=torch.float32).add(0.3).cos()
        cotangent = torch.zeros_like(end)
        chosen = kept.to(end.device)
        rows = uneven.reshape(end.shape).movedim(output_axis, 0)[chosen].to(end.dtype)
        cotangent.movedim(output_axis, 0)[chosen] = rows
        cotangents.append(cotangent)
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        ends, [start for start, _ in starts], cotangents, retain_graph=True, allow_unused=True
    )
    return any(
        _goes_beyond(gradient.movedim(axis, 0), batch_size, kept)
        for gradient, (_, axis) in zip(found, starts, strict=True)
        if gradient is not None
    )


def _goes_beyond(gradient: Tensor, batch_size: int, kept: Tensor) -> bool:
    size = gradient.abs().nan_to_num(0.0).reshape(batch_size, -1).amax(dim=1)
    largest = float(size.max())
    size[kept.to(size.device)] = 0.0
    return float(size.max()) > LARGEST_ROUNDING * largest
