"""What a membership attack looks at: one number an example, computed from a model's logits."""

from __future__ import annotations

import torch
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership.arrays import ArrayLike, as_float64, shown


def logit_scaled_confidence(logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Logit of the probability of the true class, φ = log p_y − log(1 − p_y).

    Near normal for a well-trained network, which is what LiRA assumes (Carlini et al. 2022, "Membership inference
    attacks from first principles"). It equals z_y − logsumexp of the other logits, so it stays exact where p_y rounds
    to 0 or 1.

    Args:
        logits: (N, C) unnormalized log probabilities, C ≥ 2.
        labels: (N,) integers in [0, C).

    Returns:
        (N,) float64, in nats; larger for a more confident correct prediction.

    Raises:
        AttackInputError: wrong shapes, NaN or infinity, C < 2, a label out of range.

    Example:
        >>> logit_scaled_confidence(torch.tensor([[100.0, 0.0], [0.0, 0.0]]), torch.tensor([0, 1])).tolist()
        [100.0, 0.0]
    """
    scores, index = _checked(logits, labels)
    true = scores.gather(1, index)
    others = scores.scatter(1, index, -torch.inf)
    return true.squeeze(1) - others.logsumexp(1)


def cross_entropy(logits: ArrayLike, labels: ArrayLike) -> Tensor:
    """Loss of each example, −log p_y.

    Args:
        logits: (N, C) unnormalized log probabilities, C ≥ 2.
        labels: (N,) integers in [0, C).

    Returns:
        (N,) float64, in nats, at least 0.

    Raises:
        AttackInputError: wrong shapes, NaN or infinity, C < 2, a label out of range.

    Example:
        >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1])).exp()
        tensor([2.], dtype=torch.float64)
    """
    # log(1 + exp(-phi)) keeps the digits that logsumexp(z) - z_y loses when the model is certain.
    confidence = logit_scaled_confidence(logits, labels)
    return torch.logaddexp(torch.zeros_like(confidence), -confidence)


def _checked(logits: ArrayLike, labels: ArrayLike) -> tuple[Tensor, Tensor]:
    """Logits (N, C) float64 and labels (N, 1) int64, or an error."""
    scores = as_float64(logits, "logits", ndim=2)
    index = torch.as_tensor(labels).detach().cpu()
    if index.is_floating_point() or index.is_complex() or index.dtype == torch.bool:
        raise AttackInputError(f"labels must be integers, but their dtype is {index.dtype}.")
    if tuple(index.shape) != (len(scores),):
        raise AttackInputError(f"labels must have shape ({len(scores)},) like the logits, not {tuple(index.shape)}.")
    classes = scores.shape[1]
    if classes < 2:
        raise AttackInputError(f"logits must have at least 2 classes, but their shape is {tuple(scores.shape)}.")
    outside = ((index < 0) | (index >= classes)).nonzero().squeeze(1)
    if len(outside):
        raise AttackInputError(f"labels must lie in [0, {classes}); those at index {shown(outside)} do not.")
    return scores, index.long().unsqueeze(1)
