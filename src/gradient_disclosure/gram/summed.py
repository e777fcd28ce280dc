"""What every form of per-example gradients offers, and the sum of several forms."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gradient_disclosure.gram.products import MANY, GramSum, square

CHUNK_ELEMENTS = 2_000_000
"""Entries of a block of per-example gradients; 8 MB in float32 was the fastest size measured (spec, Cost)."""

SMALL = 131_072
"""Gradients of no more entries than this (all examples together) are formed at once."""


class Term(ABC):
    """Per-example gradients of one parameter, B of them, in some form that need not hold them entry by entry.

    A parameter of shape ``(s, *rest)`` is viewed as a matrix of s rows, one without axes as a single row.

    Attributes:
        shape: shape of the parameter.
    """

    shape: tuple[int, ...]

    @property
    @abstractmethod
    def batch_size(self) -> int:
        """Number of examples B."""

    @property
    def n_rows(self) -> int:
        """Rows of the parameter as a matrix."""
        return self.shape[0] if self.shape else 1

    @property
    def row_size(self) -> int:
        """Entries of one row R."""
        return math.prod(self.shape[1:])

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of the parameter's rows from ``start`` to before ``stop``: new, (B, stop − start, R)."""

    def add_rows(self, total: Tensor, start: int, stop: int) -> Tensor:
        """``total`` plus these rows; ``total`` may be changed on the way."""
        return total + self.rows(start, stop)

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i`` in the parameter's shape and the gradients' precision, for ``weights`` (B,).

        Examples of weight 0 are left out, not multiplied by 0: their gradient may be NaN.
        """

    @abstractmethod
    def scaled(self, factors: Tensor) -> Term:
        """The same with each example's gradient multiplied by its factor, for ``factors`` (B,)."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Single, ...]:
        """The single forms whose sum this is."""

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """A tensor on the device and in the precision of the gradients."""

    def blocks(self, chunk_elements: int = CHUNK_ELEMENTS, total: Tensor | None = None) -> Iterator[Tensor]:
        """The gradients in blocks (B, w) of at most about ``chunk_elements`` entries; each entry is in one of them.

        Args:
            chunk_elements: entries of a block.
            total: filled with the sum over the examples, block by block; in the parameter's shape.
        """
        size = max(1, chunk_elements // max(1, self.batch_size * self.row_size))
        matrix = None if total is None else total.view(self.n_rows, self.row_size)
        for start in range(0, max(1, self.n_rows), size):
            stop = min(start + size, self.n_rows)
            block = self.rows(start, stop)
            if matrix is not None:
                matrix[start:stop] = block.sum(dim=0)
            yield block.flatten(1)

    def gram(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> Tensor:
        """Inner products ``<G_i, G_j>``, (B, B) float64.

        Args:
            chunk_elements: about as many entries are formed at a time at most.
            mixed: see :class:`GramSum`.
        """
        return self._gram_by_blocks(chunk_elements, mixed=mixed)

    def gram_and_sum(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> tuple[Tensor, Tensor]:
        """Inner products (B, B) float64, and ``Σ_i G_i`` in the parameter's shape, from the same blocks if possible."""
        total = torch.empty(self.shape, dtype=self.values.dtype, device=self.values.device)
        return self._gram_by_blocks(chunk_elements, total, mixed=mixed), total

    def per_example(self) -> Tensor:
        """The gradients themselves, (B, P) for a parameter of P entries."""
        return self.rows(0, self.n_rows).flatten(1)

    def _gram_by_blocks(
        self, chunk_elements: int = CHUNK_ELEMENTS, total: Tensor | None = None, *, mixed: bool = False
    ) -> Tensor:
        """Gram of the gradients themselves, one block formed at a time."""
        if self.batch_size * self.n_rows * self.row_size <= min(chunk_elements, SMALL):
            whole = self.per_example()
            if total is not None:
                total.copy_(whole.sum(dim=0).view(self.shape))
            return square(whole)
        mixed = mixed and self.batch_size * self.n_rows * self.row_size >= MANY
        gram = GramSum(self.batch_size, self.values.device, chunk_elements, mixed=mixed)
        for block in self.blocks(chunk_elements, total):
            gram.add(block)
        return gram.result()


class Single(Term):
    """One form, not a sum of several."""

    @property
    def parts(self) -> tuple[Single, ...]:
        """The term itself."""
        return (self,)

    @property
    def kind(self) -> Hashable:
        """Equal for two terms of one parameter exactly if ``plus`` and ``then`` can join them."""
        return type(self)

    @abstractmethod
    def plus(self, others: Sequence[Self]) -> Self:
        """The sum with other uses of the parameter by the same examples."""

    @abstractmethod
    def then(self, others: Sequence[Self]) -> Self:
        """These examples and after them those of the others."""

    @abstractmethod
    def nothing(self, batch_size: int) -> Self:
        """Gradients of zero in this form, for ``batch_size`` examples."""


@dataclass(frozen=True)
class Summed(Term):
    """Sum of uses of one parameter that have different forms, such as a tied head and embedding.

    Rows are formed by each use and added before any product, so that cross terms between the uses are exact.

    Attributes:
        terms: the uses, all of one batch and one parameter.
    """

    terms: tuple[Term, ...]

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of the parameter."""
        return self.terms[0].shape

    @property
    def batch_size(self) -> int:
        """Number of examples B."""
        return self.terms[0].batch_size

    @property
    def parts(self) -> tuple[Single, ...]:
        """The single forms of all uses."""
        return tuple(part for term in self.terms for part in term.parts)

    @property
    def values(self) -> Tensor:
        """Those of the first use."""
        return self.terms[0].values

    def rows(self, start: int, stop: int) -> Tensor:
        """The sum of the uses' rows, (B, stop − start, R)."""
        total = self.terms[0].rows(start, stop)
        for term in self.terms[1:]:
            total = term.add_rows(total, start, stop)
        return total

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """The sum of the uses' weighted sums, in the parameter's shape."""
        return torch.stack([term.weighted_sum(weights) for term in self.terms]).sum(dim=0)

    def scaled(self, factors: Tensor) -> Summed:
        """Every use with each example's gradient multiplied by its factor."""
        return Summed(tuple(term.scaled(factors) for term in self.terms))


def non_zero(weights: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the weights that are not 0, and these weights, on the device and in the precision of ``like``."""
    weights = weights.to(device=like.device, dtype=like.dtype)
    chosen = weights.nonzero().squeeze(1)
    return chosen, weights[chosen]


def of_each_example(factors: Tensor, values: Tensor) -> Tensor:
    """``values`` (B, ...) with each example multiplied by its factor, in the precision of ``values``."""
    factors = factors.to(device=values.device, dtype=values.dtype)
    return values * factors.reshape(-1, *[1] * (values.dim() - 1))
