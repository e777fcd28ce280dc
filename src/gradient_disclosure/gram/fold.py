"""Several consecutive rows of one example, which a layer saw as examples of their own."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from gradient_disclosure.gram.correlation import Correlation
from gradient_disclosure.gram.terms import Dense, Lookup, OuterProduct, Term, merge


def folded(term: Term, rows: int) -> Term:
    """Add up the gradients of every ``rows`` consecutive rows.

    Args:
        term: gradients of B·rows rows.
        rows: consecutive rows that belong to one example.

    Returns:
        The gradients of B examples.

    Example:
        >>> import torch
        >>> folded(Dense(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), (1,)), 2).per_example().tolist()
        [[3.0], [7.0]]
    """
    return term if rows == 1 else merge([_folded(part, rows) for part in term.parts])


def _folded(part: Term, rows: int) -> Term:
    def side_by_side(tensor: Tensor) -> Tensor:
        return tensor.reshape(tensor.shape[0] // rows, rows * tensor.shape[1], *tensor.shape[2:])

    if isinstance(part, OuterProduct):
        return replace(part, a=side_by_side(part.a), e=side_by_side(part.e))
    if isinstance(part, Correlation):
        return part.folded(rows)
    if isinstance(part, Lookup):
        return replace(part, ids=side_by_side(part.ids), e=side_by_side(part.e))
    assert isinstance(part, Dense)
    return replace(part, g=part.g.reshape(-1, rows, part.g.shape[1]).sum(dim=1))
