"""Examples that occur more than once in a batch."""

from __future__ import annotations

from torch import Tensor


def joined_copies(gram: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Take the copies of an example in a batch for one example, whose gradient is the sum of theirs.

    A ``DistributedSampler`` repeats examples so that all ranks have the same number of them. Leaving an example out
    means to leave all its copies out, and what it adds to the sum of gradients is what they add together.

    Args:
        gram: (B, B) inner products of the gradients.
        ids: (B,) data set indices.

    Returns:
        (U, U) inner products and (U,) indices, each once: as they are if none occurs twice, else in ascending order.

    Example:
        >>> import torch
    >>> gram, ids = joined_copies(torch.ones(3, 3), torch.tensor([7, 4, 7]))
        >>> gram.tolist(), ids.tolist()
        ([[1.0, 2.0], [2.0, 4.0]], [4, 7])
    """
    unique, places = ids.unique(return_inverse=True)
    if len(unique) == len(ids):
        return gram, ids
    rows = gram.new_zeros(len(unique), len(ids)).index_add_(0, places, gram)
    return gram.new_zeros(len(unique), len(unique)).index_add_(1, places, rows), unique
