"""Per-example gradients of a weight that multiplies its input, position by position."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from gradient_disclosure.gram.products import TILES, products, square, whole_tiles
from gradient_disclosure.gram.summed import CHUNK_ELEMENTS, Single, non_zero, of_each_example


@dataclass(frozen=True)
class OuterProduct(Single):
    """Per-example gradients ``Σ_t e_it a_itᵀ`` of a weight (m, n).

    Attributes:
        a: (B, T, n) inputs.
        e: (B, T, m) output gradients.
        shape: shape of the parameter, with m·n entries in row-major order.
    """

    a: Tensor
    e: Tensor
    shape: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """Number of examples B."""
        return self.a.shape[0]

    @property
    def kind(self) -> Hashable:
        """Outer products join if their inputs and outputs have the same sizes."""
        return type(self), self.a.shape[2], self.e.shape[2]

    @property
    def values(self) -> Tensor:
        """The output gradients."""
        return self.e

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of the parameter's rows ``start`` to ``stop``, (B, stop − start, R)."""
        n = self.a.shape[2]
        first, last = start * self.row_size, stop * self.row_size
        top = first // max(1, n)  # the parameter's rows need not be those of the outer product
        block = torch.bmm(self.e.transpose(1, 2)[:, top : -(-last // max(1, n))], self.a).flatten(1)
        return block[:, first - top * n : last - top * n].reshape(self.batch_size, stop - start, self.row_size)

    def blocks(self, chunk_elements: int = CHUNK_ELEMENTS, total: Tensor | None = None) -> Iterator[Tensor]:
        """Blocks (B, w) of the gradients; see :meth:`Term.blocks`."""
        batch, _, n = self.a.shape
        per_row = max(1, chunk_elements // max(1, batch))
        rows = whole_tiles(max(1, per_row // max(1, n)))
        if rows < TILES[0]:  # columns are split rather than rows: products of few rows are slow
            rows = max(rows, min(TILES[0], whole_tiles(self.e.shape[2]), per_row))
        pieces = -(-n // (per_row // rows))
        columns = -(-n // max(1, pieces))
        for start in range(0, max(1, n), max(1, columns)):
            yield from self._blocks_of(slice(start, min(start + columns, n)), rows, total)

    def gram(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> Tensor:
        """Inner products ``<G_i, G_j>``, (B, B) float64, by the cheaper of two exact ways."""
        if self._pairs_are_cheaper():
            return self._gram_by_pairs(chunk_elements)
        return self._gram_by_blocks(chunk_elements, mixed=mixed)

    def gram_and_sum(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> tuple[Tensor, Tensor]:
        """Inner products (B, B) float64, and ``Σ_i G_i`` in the parameter's shape, from the same blocks if possible."""
        if self._pairs_are_cheaper():
            total = self.e.flatten(0, 1).T @ self.a.flatten(0, 1)
            return self._gram_by_pairs(chunk_elements), total.reshape(self.shape)
        return super().gram_and_sum(chunk_elements, mixed=mixed)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i`` in the parameter's shape, for ``weights`` (B,); examples of weight 0 are left out."""
        chosen, weights = non_zero(weights, self.e)
        weighted = self.e[chosen] * weights[:, None, None]
        total = weighted.flatten(0, 1).T @ self.a[chosen].flatten(0, 1)
        return total.reshape(self.shape)

    def scaled(self, factors: Tensor) -> OuterProduct:
        """The same with each example's gradient multiplied by its factor."""
        return replace(self, e=of_each_example(factors, self.e))

    def plus(self, others: Sequence[OuterProduct]) -> OuterProduct:
        """The positions of all uses side by side."""
        terms = (self, *others)
        return replace(
            self, a=torch.cat([term.a for term in terms], dim=1), e=torch.cat([term.e for term in terms], dim=1)
        )

    def then(self, others: Sequence[OuterProduct]) -> OuterProduct:
        """The examples of all one after the other, shorter ones padded with positions of zero."""
        terms = (self, *others)
        longest = max(term.a.shape[1] for term in terms)
        a = [F.pad(term.a, (0, 0, 0, longest - term.a.shape[1])) for term in terms]
        e = [F.pad(term.e, (0, 0, 0, longest - term.e.shape[1])) for term in terms]
        return replace(self, a=torch.cat(a), e=torch.cat(e))

    def nothing(self, batch_size: int) -> OuterProduct:
        """No position at all."""
        a, e = self.a.new_zeros(batch_size, 0, self.a.shape[2]), self.e.new_zeros(batch_size, 0, self.e.shape[2])
        return replace(self, a=a, e=e)

    def _blocks_of(self, columns: slice, rows: int, total: Tensor | None) -> Iterator[Tensor]:
        """Blocks of ``rows`` rows of the outer product and some of its columns."""
        a, e = self.a[:, :, columns], self.e.transpose(1, 2)
        matrix = None if total is None else total.view(self.e.shape[2], self.a.shape[2])
        buffer = a.new_empty(len(a), min(rows, e.shape[1]), a.shape[2])  # a new one each time costs page faults
        for start in range(0, max(1, e.shape[1]), rows):
            some = e[:, start : start + rows]
            block = torch.bmm(some, a, out=buffer) if some.shape[1] == rows else torch.bmm(some, a)
            if matrix is not None:
                torch.sum(block, dim=0, out=matrix[start : start + rows, columns])
            yield block.flatten(1)

    def _pairs_are_cheaper(self) -> bool:
        """Multiply-adds of both ways, those in float64 counted twice (spec, Cost)."""
        batch, positions, n = self.a.shape
        m = self.e.shape[2]
        return batch * positions**2 * (n + m) <= (positions / 2 + batch) * n * m

    def _gram_by_pairs(self, chunk_elements: int = CHUNK_ELEMENTS) -> Tensor:
        """``K_ij = Σ_{t,s} (a_it·a_js)(e_it·e_js)``: all PAIRS of positions, exact for sequences too."""
        batch, positions = self.a.shape[:2]
        a, e = self.a.flatten(0, 1), self.e.flatten(0, 1)
        if len(a) * max(len(a), a.shape[1], e.shape[1]) <= chunk_elements:
            pairs = square(a).mul_(square(e))
            return pairs if positions == 1 else pairs.reshape(batch, positions, batch, positions).sum(dim=(1, 3))
        gram = torch.zeros(batch, batch, dtype=torch.float64, device=a.device)
        size = max(1, chunk_elements // max(1, len(a)))
        for start in range(0, len(a), size):
            here = slice(start, min(start + size, len(a)))
            pairs = products(a[here], a, chunk_elements).mul_(products(e[here], e, chunk_elements))
            by_example = pairs.unflatten(1, (batch, positions)).sum(dim=2)
            gram.index_add_(0, torch.arange(start, here.stop, device=a.device) // positions, by_example)
        return gram
