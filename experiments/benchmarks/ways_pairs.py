"""Pairs of positions for every layer that has positions: exact, with work that grows with T²."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from experiments.benchmarks.way import CannotRunError, Observe, Way
from experiments.benchmarks.ways_ours import observed
from experiments.benchmarks.workload import Workload
from gradient_disclosure.gram.correlation import Correlation
from gradient_disclosure.gram.outer_product import OuterProduct

ROWS = 256
"""Positions of how many examples are multiplied at a time: about so many."""
ENTRIES = 8_000_000
"""Entries of a block of pairs."""


def pairs_gram(a: Tensor, e: Tensor) -> Tensor:
    """``K_ij = Σ_{t,s} (a_it · a_js)(e_it · e_js)``, in the tensors' own precision, using the symmetry.

    Args:
        a: (B, T, n) inputs.
        e: (B, T, m) output gradients.

    Returns:
        (B, B) float64.

    Example:
        >>> a, e = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[3.0], [4.0]]])
        >>> pairs_gram(a, e).tolist()  # the gradient is 1·3 + 2·4 = 11
        [[121.0]]
    """
    batch, positions = a.shape[:2]
    if positions == 1:
        return ((a[:, 0] @ a[:, 0].T) * (e[:, 0] @ e[:, 0].T)).double()
    a, e = a.flatten(0, 1), e.flatten(0, 1)
    gram = torch.zeros(batch, batch, dtype=torch.float64, device=a.device)
    examples = max(1, ROWS // positions)
    for first in range(0, batch, examples):
        last = min(first + examples, batch)
        seen = last * positions
        size = max(1, min((last - first) * positions, ENTRIES // seen))
        for start in range(first * positions, seen, size):
            here = slice(start, min(start + size, seen))
            pairs = (a[here] @ a[:seen].T).mul_(e[here] @ e[:seen].T)
            sums = pairs.unflatten(1, (last, positions)).sum(dim=2).double()
            owner = torch.arange(here.start, here.stop, device=a.device) // positions
            gram[:, :last].index_add_(0, owner, sums)
    return gram.tril() + gram.tril(-1).T


def _of_outer_product(term: OuterProduct) -> Tensor:
    return pairs_gram(term.a, term.e)


def _of_correlation(term: Correlation) -> Tensor:
    if term.groups != 1:
        raise CannotRunError("pairs of positions are not written here for grouped convolutions")
    batch = term.batch_size
    windows = torch.stack([window.flatten(2) for window in term.windows()], dim=2)  # (B·U, C, kernel, outputs)
    a = windows.flatten(1, 2).transpose(1, 2).reshape(batch, -1, windows.shape[1] * windows.shape[2])
    e = term.e.flatten(3).transpose(2, 3).reshape(batch, -1, term.e.shape[2])
    return pairs_gram(a, e)


@contextmanager
def pairs_session(workload: Workload) -> Iterator[Observe]:
    """The engine with its choice of the way taken from it; a tied head's cross terms remain the engine's."""
    forced = 0

    def force(way: Callable[[Any], Tensor]) -> Callable[..., Tensor]:
        def gram(term: Any, *args: Any, **kwargs: Any) -> Tensor:
            nonlocal forced
            forced += 1
            return way(term)

        return gram

    def observe() -> Tensor:
        nonlocal forced
        forced = 0
        found = observed(workload)
        if forced == 0:
            raise CannotRunError("no layer's Gram matrix was computed from pairs: the engine no longer asks its terms")
        return found

    with ExitStack() as stack:
        stack.enter_context(patch.object(OuterProduct, "gram", force(_of_outer_product)))
        stack.enter_context(patch.object(Correlation, "gram", force(_of_correlation)))
        yield observe


PAIRS = Way("pairs", "pairs of positions", True, pairs_session)
