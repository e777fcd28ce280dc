"""Random splits that depend on a seed alone, never on torch's global random state."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_rows(available: int, size: int | None, *, seed: int, dataset: str, part: str) -> Tensor:
    """Draws `size` different rows out of `available`, uniformly and without stratification.

    The rows are the front of one permutation fixed by `seed`, so that a larger draw contains the smaller ones.

    Args:
        available: number of rows that exist.
        size: number of rows to draw; None for all of them, in random order.
        seed: seed of the permutation.
        dataset: name of the data set, for the message.
        part: "pool" or "test", for the message.

    Returns:
        (size,) int64, all different.

    Raises:
        ValueError: `size` is below 1 or above `available`.

    Example:
        >>> rows = draw_rows(10, 4, seed=0, dataset="digits", part="pool")
        >>> len(set(rows.tolist()))
        4
    """
    count = available if size is None else size
    if not 1 <= count <= available:
        raise ValueError(
            f"{dataset}: {part}_size={size} is not possible, {available} examples are there to draw from. "
            f"Choose between 1 and {available}, or null for all."
        )
    return torch.randperm(available, generator=torch.Generator().manual_seed(seed))[:count]


def split_rows(
    available: int, pool_size: int | None, test_size: int | None, *, seed: int, dataset: str
) -> tuple[Tensor, Tensor]:
    """Splits the rows of a data set that has no official test set into a pool and a disjoint test set.

    One permutation fixed by `seed`, without stratification: the pool is taken from its front and the test set from
    its back, so that changing the size of one does not change the members of the other.

    Args:
        available: number of rows that exist.
        pool_size: rows of the pool; None for all that the test set leaves.
        test_size: rows of the test set; None for all that the pool leaves.
        seed: seed of the permutation.
        dataset: name of the data set, for the message.

    Returns:
        Rows of the pool and rows of the test set, both int64.

    Raises:
        ValueError: the sizes do not fit, or both are None.

    Example:
        >>> pool, test = split_rows(10, 6, None, seed=0, dataset="digits")
        >>> sorted(pool.tolist() + test.tolist()) == list(range(10))
        True
    """
    rest = available - (pool_size or 0) - (test_size or 0)
    pool = rest if pool_size is None else pool_size
    test = rest if test_size is None else test_size
    if min(pool, test) < 1 or pool + test > available:
        raise ValueError(
            f"{dataset}: pool_size={pool_size} and test_size={test_size} do not fit, {available} examples are there "
            f"to share. Both need at least 1 and together at most {available}; one of them may be null for the rest."
        )
    order = torch.randperm(available, generator=torch.Generator().manual_seed(seed))
    return order[:pool], order[available - test :]
