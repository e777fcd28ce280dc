"""Per-example gradients in the forms they come in, and their inner products.

One canonical layout: a weight of shape (m, n) that is used at T positions has inputs ``a`` (B, T, n) and output
gradients ``e`` (B, T, m); the gradient of example i is ``G_i = Σ_t e_it a_itᵀ``. Every layer is brought into this
layout, into a lookup of rows or, where its per-example gradient is small, into a dense (B, P) matrix. Nothing below
knows of modules.

Inner products are summed in float64: the Gram matrix is then, to rounding in float64, the exact Gram of the per-example
gradients as the model's own precision gives them, hence positive semi-definite, as a solve with a small damping needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.summed import (
    CHUNK_ELEMENTS,
    Single,
    Summed,
    Term,
    non_zero,
    of_each_example,
)

__all__ = ["CHUNK_ELEMENTS", "Dense", "Lookup", "OuterProduct", "Summed", "Term", "concatenate", "merge", "scaled"]


@dataclass(frozen=True)
class Dense(Single):
    """Per-example gradients of a small parameter, already formed.

    Attributes:
        g: (B, P).
        shape: shape of the parameter, with P entries.
    """

    g: Tensor
    shape: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """Number of examples B."""
        return self.g.shape[0]

    @property
    def values(self) -> Tensor:
        """The gradients."""
        return self.g

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of the parameter's rows ``start`` to ``stop``, (B, stop − start, R)."""
        return self.g.reshape(self.batch_size, self.n_rows, self.row_size)[:, start:stop].clone()

    def blocks(self, chunk_elements: int = CHUNK_ELEMENTS, total: Tensor | None = None) -> Iterator[Tensor]:
        """The matrix itself."""
        if total is not None:
            total.view(-1).copy_(self.g.sum(dim=0))
        yield self.g

    def per_example(self) -> Tensor:
        """The gradients themselves, (B, P)."""
        return self.g

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i g_i`` in the parameter's shape, for ``weights`` (B,); those of weight 0 are left out."""
        chosen, weights = non_zero(weights, self.g)
        return (weights @ self.g[chosen]).reshape(self.shape)

    def scaled(self, factors: Tensor) -> Dense:
        """The same with each example's gradient multiplied by its factor."""
        return replace(self, g=of_each_example(factors, self.g))

    def plus(self, others: Sequence[Dense]) -> Dense:
        """The entries added."""
        return replace(self, g=torch.stack([term.g for term in (self, *others)]).sum(dim=0))

    def then(self, others: Sequence[Dense]) -> Dense:
        """The examples of all one after the other."""
        return replace(self, g=torch.cat([term.g for term in (self, *others)]))

    def nothing(self, batch_size: int) -> Dense:
        """Zeros."""
        return replace(self, g=self.g.new_zeros(batch_size, self.g.shape[1]))


def merge(terms: Sequence[Term]) -> Term:
    """The sum of several uses of ONE parameter, as a single term.

    A parameter used more than once has the sum of its uses' gradients, so its inner products contain cross terms. Outer
    products and lookups add by laying their positions side by side, dense matrices by their entries; uses of different
    forms are added block by block.

    Args:
        terms: one term a use, all of the same batch and parameter.

    Returns:
        A term whose per-example gradients are the sums of those given.

    Example:
        >>> import torch
        >>> use = Dense(torch.tensor([[1.0], [2.0]]), (1,))
        >>> merge([use, use]).gram().tolist()
        [[4.0, 8.0], [8.0, 16.0]]
    """
    groups: dict[Hashable, list[Any]] = {}
    for term in terms:
        for part in term.parts:
            groups.setdefault(part.kind, []).append(part)
    return _one([group[0].plus(group[1:]) if len(group) > 1 else group[0] for group in groups.values()])


def concatenate(terms: Sequence[Term]) -> Term:
    """The examples of several micro-batches, one after the other, as a single batch (gradient accumulation).

    Args:
        terms: one term a micro-batch, all of one parameter; batch sizes, numbers of positions and forms may differ.

    Returns:
        A term of as many examples as all have together.

    Example:
        >>> import torch
        >>> first, second = Dense(torch.tensor([[1.0]]), (1,)), Dense(torch.tensor([[2.0], [3.0]]), (1,))
        >>> concatenate([first, second]).per_example().tolist()
        [[1.0], [2.0], [3.0]]
    """
    if len(terms) == 1:
        return terms[0]
    forms: list[dict[Hashable, Single]] = [{part.kind: part for part in merge([term]).parts} for term in terms]
    examples: dict[Hashable, Single] = {kind: part for parts in forms for kind, part in parts.items()}
    joined: list[Single] = []
    for kind, like in examples.items():
        group: list[Any] = [
            parts.get(kind) or like.nothing(term.batch_size) for parts, term in zip(forms, terms, strict=True)
        ]
        joined.append(group[0].then(group[1:]))
    return _one(joined)


def scaled(term: Term, factors: Tensor) -> Term:
    """Each example's gradient multiplied by its factor.

    Args:
        term: gradients of B examples.
        factors: (B,) real.

    Returns:
        A term of the same form.

    Example:
        >>> import torch
        >>> scaled(Dense(torch.ones(2, 1), (1,)), torch.tensor([2.0, 3.0])).per_example().tolist()
        [[2.0], [3.0]]
    """
    return term.scaled(factors)


def _one(terms: list[Single]) -> Term:
    # A lookup adds only the rows that occur to what is already there, so it comes last.
    terms = sorted(terms, key=lambda term: isinstance(term, Lookup))
    return terms[0] if len(terms) == 1 else Summed(tuple(terms))
