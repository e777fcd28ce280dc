"""Slow, literal definitions: what the fast code is tested against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


def per_example_gradients(module: nn.Module, loss: Callable[[nn.Module, int], Tensor], batch_size: int) -> Tensor:
    """Gradients of each example's own loss, one backward pass an example.

    Args:
        module: any module; its ``.grad`` fields are left untouched.
        loss: (module, i) → scalar loss of example i alone.
        batch_size: number of examples B.

    Returns:
        (B, d): gradients over all trainable parameters, flattened in the order of ``parameters()``, a parameter that
        takes no part as zeros.

    Example:
        >>> import torch
        >>> model, x = torch.nn.Linear(2, 1, bias=False), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> per_example_gradients(model, lambda m, i: m(x[i : i + 1]).sum(), 2).tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for i in range(batch_size):
        gradients = torch.autograd.grad(loss(module, i), parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g).flatten()
                    for p, g in zip(parameters, gradients, strict=True)
                ]
            )
        )
    return torch.stack(rows) if rows else torch.zeros(0, sum(p.numel() for p in parameters))


def leave_one_out_gnq(gradients: Tensor, damping: float) -> Tensor:
    """Gradient uniqueness by its definition: ``g_jᵀ (Σ_{k≠j} g_k g_kᵀ + λI)⁻¹ g_j``, one d×d solve an example.

    Args:
        gradients: (B, d) per-example gradients.
        damping: λ > 0.

    Returns:
        (B,) float64.

    Example:
        >>> import torch
        >>> leave_one_out_gnq(torch.eye(2), damping=0.5).tolist()
        [2.0, 2.0]
    """
    gradients = gradients.double()
    dimension = gradients.shape[1]
    scores = []
    for j in range(gradients.shape[0]):
        others = torch.cat([gradients[:j], gradients[j + 1 :]])
        matrix = others.T @ others + damping * torch.eye(dimension, dtype=torch.float64)
        scores.append(gradients[j] @ torch.linalg.solve(matrix, gradients[j]))
    return torch.stack(scores) if scores else torch.zeros(0, dtype=torch.float64)
