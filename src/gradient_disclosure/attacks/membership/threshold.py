"""The cheapest membership attack: one global threshold on the loss, no shadow models."""

from __future__ import annotations

from torch import Tensor

from gradient_disclosure.attacks.membership.arrays import ArrayLike, as_float64


def loss_threshold_scores(losses: ArrayLike) -> Tensor:
    """Scores of the global loss threshold attack: the lower the loss, the more member-like.

    Yeom et al. 2018, "Privacy risk in machine learning". The attacker sees the released model's loss on the example and
    nothing else; it trains no model.

    Args:
        losses: (N,) loss of each example under the target model.

    Returns:
        (N,) float64, higher for a likelier member.

    Raises:
        AttackInputError: not one axis, or NaN or infinity.

    Example:
        >>> import torch
        >>> loss_threshold_scores(torch.tensor([0.5, 2.0])).tolist()
        [-0.5, -2.0]
    """
    return -as_float64(losses, "losses", ndim=1)
