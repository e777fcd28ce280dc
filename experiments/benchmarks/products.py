"""Gram matrices of per-example gradients that are already formed, as those who form them all would compute it."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

COLUMNS = 262_144
"""Entries of each example's gradient in one float32 product; what these give is added in float64."""


def gram_of(gradients: Iterable[Tensor]) -> Tensor:
    """Inner products of per-example gradients given parameter by parameter.

    Products in the gradients' own precision: the cheapest way for those that this project is compared with.

    Args:
        gradients: (B, *shape) of each parameter.

    Returns:
        (B, B) float64.

    Example:
        >>> import torch
        >>> gram_of([torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0], [0.0]])]).tolist()
        [[10.0, 2.0], [2.0, 4.0]]
    """
    total: Tensor | None = None
    for gradient in gradients:
        flat = gradient.reshape(len(gradient), -1)
        for start in range(0, flat.shape[1], COLUMNS):
            piece = flat[:, start : start + COLUMNS]
            part = (piece @ piece.T).double()
            total = part if total is None else total.add_(part)
    if total is None:
        raise ValueError("no gradients were given")
    return total


def deviation(found: Tensor, expected: Tensor) -> float:
    """Largest difference of two matrices relative to the largest entry of the second.

    Example:
        >>> import torch
        >>> deviation(torch.tensor([[1.0, 3.0]]), torch.tensor([[2.0, 4.0]]))
        0.25
    """
    return float((found.double().cpu() - expected.double().cpu()).abs().max() / expected.abs().max().cpu())
