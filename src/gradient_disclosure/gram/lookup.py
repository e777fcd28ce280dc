"""Per-example gradients of a table from which rows are looked up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from gradient_disclosure.gram.summed import CHUNK_ELEMENTS, Single, non_zero, of_each_example


@dataclass(frozen=True)
class Lookup(Single):
    """Per-example gradients ``Σ_t onehot(id_it) e_itᵀ`` of a table (V, n).

    Attributes:
        ids: (B, T) int64, the row looked up at each position; a negative one contributes nothing (padding).
        e: (B, T, n) gradients of what was looked up.
        shape: (V, n).

    Example:
        >>> import torch
        >>> ids, e = torch.tensor([[0, 2], [2, -1]]), torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])
        >>> Lookup(ids, e, (3, 1)).per_example().tolist()
        [[1.0, 0.0, 2.0], [0.0, 0.0, 3.0]]
    """

    ids: Tensor
    e: Tensor
    shape: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """Number of examples B."""
        return self.ids.shape[0]

    @property
    def values(self) -> Tensor:
        """The gradients of what was looked up."""
        return self.e

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of the table's rows ``start`` to ``stop``, (B, stop − start, n)."""
        shape = (self.batch_size, stop - start, self.e.shape[2])
        return self.add_rows(self.e.new_zeros(shape), start, stop)

    def add_rows(self, total: Tensor, start: int, stop: int) -> Tensor:
        """``total`` (B, stop − start, n) plus these rows, by touching only those that occur."""
        ids, order = self._sorted
        bounds = torch.searchsorted(ids, torch.tensor([start, stop], device=ids.device))
        first, last = bounds.tolist()
        example, position = _split(order[first:last], self.ids.shape[1])
        total = total.to(torch.promote_types(total.dtype, self.e.dtype)).contiguous()
        place = example * (stop - start) + ids[first:last] - start
        total.flatten(0, 1).index_add_(0, place, self.e[example, position].to(total.dtype))
        return total

    def gram(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> Tensor:
        """Inner products, (B, B) float64: e summed over equal ids of an example, then matched across examples.

        The work grows with the number of ids that occur, not with the size of the table.
        """
        compact, _ = self.compact()
        return compact._gram_by_blocks(chunk_elements, mixed=mixed)

    def gram_and_sum(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> tuple[Tensor, Tensor]:
        """Inner products, and the sum over the examples."""
        return self.gram(chunk_elements, mixed=mixed), self.weighted_sum(torch.ones(self.batch_size))

    def compact(self) -> tuple[Lookup, Tensor]:
        """The same in a table of the rows that occur alone, and their numbers in the whole one, ascending."""
        occurring, numbers = self.ids.unique(return_inverse=True)
        padding = int((occurring < 0).sum())
        occurring = occurring[padding:]
        return Lookup(numbers - padding, self.e, (occurring.numel(), self.e.shape[2])), occurring

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i``, (V, n), for ``weights`` (B,); examples of weight 0 are left out."""
        chosen, weights = non_zero(weights, self.e)
        total = self.e.new_zeros(self.shape)
        example, position = (self.ids[chosen] >= 0).nonzero(as_tuple=True)
        values = self.e[chosen[example], position] * weights[example, None]
        return total.index_add_(0, self.ids[chosen[example], position], values)

    def scaled(self, factors: Tensor) -> Lookup:
        """The same with each example's gradient multiplied by its factor."""
        return replace(self, e=of_each_example(factors, self.e))

    def plus(self, others: Sequence[Lookup]) -> Lookup:
        """The positions of all uses side by side."""
        terms = (self, *others)
        return replace(
            self, ids=torch.cat([term.ids for term in terms], dim=1), e=torch.cat([term.e for term in terms], dim=1)
        )

    def then(self, others: Sequence[Lookup]) -> Lookup:
        """The examples of all one after the other, shorter ones padded."""
        terms = (self, *others)
        longest = max(term.ids.shape[1] for term in terms)
        ids = [F.pad(term.ids, (0, longest - term.ids.shape[1]), value=-1) for term in terms]
        e = [F.pad(term.e, (0, 0, 0, longest - term.e.shape[1])) for term in terms]
        return replace(self, ids=torch.cat(ids), e=torch.cat(e))

    def nothing(self, batch_size: int) -> Lookup:
        """No position at all."""
        return replace(self, ids=self.ids.new_zeros(batch_size, 0), e=self.e.new_zeros(batch_size, 0, self.e.shape[2]))

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """All ids in ascending order, and where each came from among the B·T positions."""
        ids, order = self.ids.flatten().sort(stable=True)
        return ids.contiguous(), order


def _split(flat: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """Example and position of indices into B·T."""
    positions = max(1, positions)
    return flat // positions, flat % positions
