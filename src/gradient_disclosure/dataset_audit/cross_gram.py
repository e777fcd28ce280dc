"""Inner products of the per-example gradients of one set of examples with those of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from gradient_disclosure.gram.correlation import Correlation
from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.summed import Summed, Term
from gradient_disclosure.gram.terms import Dense, merge

CHUNK_ELEMENTS = 4_000_000
"""Entries formed at a time: 32 MB in float64."""


def cross_gram(left: Mapping[str, Term], right: Mapping[str, Term], size: tuple[int, int]) -> Tensor:
    """Inner products over all parameters.

    Outer products are taken in float64 whichever way they are formed, so that blocks of different examples belong to
    one positive semi-definite matrix: every example has ONE gradient, exact in float64.

    Args:
        left: name of the parameter → per-example gradients of B examples; a name that is missing stands for zeros.
        right: those of C other (or the same) examples.
        size: (B, C).

    Returns:
        (B, C) float64.

    Example:
        >>> import torch
        >>> terms = {"w": Dense(torch.tensor([[1.0], [2.0]]), (1,))}
        >>> cross_gram(terms, {"w": Dense(torch.tensor([[3.0]]), (1,))}, (2, 1)).tolist()
        [[3.0], [6.0]]
    """
    total = torch.zeros(size, dtype=torch.float64)
    for name in left.keys() & right.keys():
        total += cross_products(left[name], right[name])
    return total


def squared_norms(terms: Mapping[str, Term], size: int, height: int = 64) -> Tensor:
    """Squared norms (B,) float64 of gradients over all parameters, from blocks of ``height`` examples."""
    parts = [torch.zeros(0, dtype=torch.float64)]
    for start in range(0, size, height):
        rows = slice(start, min(start + height, size))
        here = {name: examples_of(term, rows) for name, term in terms.items()}
        count = rows.stop - rows.start
        parts.append(cross_gram(here, here, (count, count)).diagonal())
    return torch.cat(parts)


def cross_products(left: Term, right: Term, chunk_elements: int = CHUNK_ELEMENTS) -> Tensor:
    """Inner products ``<G_i, G'_j>`` of one parameter's gradients, (B, C) float64.

    Args:
        left: B examples.
        right: C examples; form and number of positions may differ.
        chunk_elements: entries formed at a time, about.

    Returns:
        (B, C) float64.
    """
    left, right = in_double(left), in_double(right)
    if isinstance(left, OuterProduct) and isinstance(right, OuterProduct) and left.kind == right.kind:
        if _pairs_are_cheaper(left, right):
            return _by_pairs(left, right, chunk_elements)
    elif isinstance(left, Lookup) and isinstance(right, Lookup):
        left, right = _common_rows(left, right)
    return _by_rows(left, right, chunk_elements)


def in_double(term: Term) -> Term:
    """The same with float64 tensors wherever gradients are still to be summed; formed ones stay as they are."""
    if isinstance(term, Summed):
        return Summed(tuple(in_double(part) for part in term.terms))
    if isinstance(term, OuterProduct):
        return replace(term, a=term.a.double(), e=term.e.double())
    if isinstance(term, Lookup):
        return replace(term, e=term.e.double())
    return term


def examples_of(term: Term, rows: slice) -> Term:
    """The gradients of some of the examples.

    Example:
        >>> import torch
        >>> examples_of(Dense(torch.tensor([[1.0], [2.0], [3.0]]), (1,)), slice(1, 3)).per_example().tolist()
        [[2.0], [3.0]]
    """
    if isinstance(term, Summed):
        return Summed(tuple(examples_of(part, rows) for part in term.terms))
    tensors = {
        field.name: value[rows]
        for field in fields(term)  # type: ignore[arg-type]
        if isinstance(value := getattr(term, field.name), Tensor)
    }
    return replace(term, **tensors)  # type: ignore[type-var]


def compact(term: Term) -> Term:
    """The form that takes least room: outer products of positions, or the gradients themselves."""
    if isinstance(term, Summed):
        return merge([compact(part) for part in term.terms])
    if isinstance(term, Correlation):
        return compact(_unfolded(term)) if term.groups == 1 else Dense(term.per_example(), term.shape)
    if isinstance(term, OuterProduct):
        positions, n, m = term.a.shape[1], term.a.shape[2], term.e.shape[2]
        if n * m <= positions * (n + m):
            return Dense(term.per_example(), term.shape)
    return term


def _unfolded(term: Correlation) -> OuterProduct:
    """A convolution as an outer product of what its output positions read."""
    batch, uses, outputs = term.e.shape[:3]
    windows = torch.stack([window.flatten(2) for window in term.windows()], dim=2).flatten(1, 2)
    a = windows.transpose(1, 2).unflatten(0, (batch, uses)).flatten(1, 2)
    return OuterProduct(a, term.e.flatten(3).transpose(2, 3).reshape(batch, -1, outputs), term.shape)


def _pairs_are_cheaper(left: OuterProduct, right: OuterProduct) -> bool:
    """Multiply-adds of both ways."""
    n, m = left.a.shape[2], left.e.shape[2]
    positions = [term.batch_size * term.a.shape[1] for term in (left, right)]
    pairs = positions[0] * positions[1] * (n + m)
    return pairs <= sum(positions) * n * m + left.batch_size * right.batch_size * n * m


def _by_pairs(left: OuterProduct, right: OuterProduct, chunk_elements: int) -> Tensor:
    """``Σ_{t,s} (a_it · a'_js)(e_it · e'_js)``: all pairs of positions."""
    gram = torch.zeros(left.batch_size, right.batch_size, dtype=torch.float64)
    (a, e), positions = (right.a.flatten(0, 1), right.e.flatten(0, 1)), right.a.shape[1]
    of_each = left.a.shape[1] * len(a)
    if of_each == 0:
        return gram
    height = max(1, chunk_elements // of_each)
    for start in range(0, left.batch_size, height):
        here = slice(start, start + height)
        pairs = (left.a[here].flatten(0, 1) @ a.T).mul_(left.e[here].flatten(0, 1) @ e.T)
        if left.a.shape[1] == positions == 1:
            gram[here] = pairs
        else:
            gram[here] = pairs.reshape(-1, left.a.shape[1], right.batch_size, positions).sum(dim=(1, 3))
    return gram


def _by_rows(left: Term, right: Term, chunk_elements: int) -> Tensor:
    """The gradients themselves, some of the parameter's rows at a time."""
    gram = torch.zeros(left.batch_size, right.batch_size, dtype=torch.float64)
    height = max(1, chunk_elements // max(1, max(gram.shape) * left.row_size))
    for start in range(0, left.n_rows, height):
        stop = min(start + height, left.n_rows)
        x, y = left.rows(start, stop).flatten(1).double(), right.rows(start, stop).flatten(1).double()
        gram.addmm_(x, y.T)
    return gram


def _common_rows(left: Lookup, right: Lookup) -> tuple[Lookup, Lookup]:
    """Both tables cut down to the rows that occur on both sides: the others meet zeros."""
    common = left.ids.unique()
    common = common[torch.isin(common, right.ids.unique()) & (common >= 0)]

    def cut(term: Lookup) -> Lookup:
        if common.numel() == 0:
            return Lookup(torch.full_like(term.ids, -1), term.e, (0, term.e.shape[2]))
        place = torch.searchsorted(common, term.ids).clamp(max=common.numel() - 1)
        ids = torch.where(common[place] == term.ids, place, torch.full_like(place, -1))
        return Lookup(ids, term.e, (common.numel(), term.e.shape[2]))

    return cut(left), cut(right)
