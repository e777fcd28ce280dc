"""Pairs reconstructions with originals; a gradient does not say in which order its examples came."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError


def match_to_originals(reconstructed: Tensor, original: Tensor) -> Tensor:
    """The pairing with the smallest total squared error (Kuhn 1955, the Hungarian method).

    Only scoring calls this: it looks at the truth.

    Args:
        reconstructed: (B, *shape).
        original: (B, *shape).

    Returns:
        (B,) int64 ``order`` such that ``reconstructed[order]`` lies in the order of ``original``.

    Raises:
        AttackInputError: the shapes differ, or a value is NaN or infinite.

    Example:
        >>> match_to_originals(torch.tensor([[9.0], [1.0]]), torch.tensor([[0.0], [10.0]]))
        tensor([1, 0])
    """
    check_pair(reconstructed, original)
    found, truth = (images.detach().flatten(1).to("cpu", torch.float64) for images in (reconstructed, original))
    cost = torch.cdist(truth, found, compute_mode="donot_use_mm_for_euclid_dist").square()
    return torch.from_numpy(linear_sum_assignment(cost.numpy())[1]).long()


def check_pair(reconstructed: Tensor, original: Tensor) -> None:
    """Refuses reconstructions that cannot be compared with the originals.

    Args:
        reconstructed: (B, *shape).
        original: (B, *shape).

    Raises:
        AttackInputError: the shapes differ, or a value is NaN or infinite.

    Example:
        >>> check_pair(torch.zeros(1, 2), torch.ones(1, 2))
    """
    if reconstructed.shape != original.shape or original.ndim < 2:
        raise AttackInputError(
            "reconstructed and original must both have shape (B, *shape), but their shapes are"
            f" {tuple(reconstructed.shape)} and {tuple(original.shape)}."
        )
    for name, images in (("reconstructed", reconstructed), ("original", original)):
        if not bool(torch.isfinite(images).all()):
            raise AttackInputError(f"{name} holds NaN or infinity; it cannot be scored.")
