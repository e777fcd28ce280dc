"""A table that is also a head: its largest use enters the Gram at once, and only what later uses can touch is kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.products import products
from gradient_disclosure.gram.summed import CHUNK_ELEMENTS, Term


class TiedHead:
    """The gradients ``H_i`` of an output layer whose weight is looked up elsewhere in the same pass.

    ``<H_i + L_i, H_j + L_j>`` needs, beside the Gram matrices of both, ``H`` only in the rows that are looked up. Of a
    large vocabulary these are few, and the gradients of all logits need not be kept until those of the lookups arrive,
    at the very end of the backward pass.

    Args:
        head: the output layer's term, (V, n).
        ids: the ids that will be looked up, one tensor a lookup.

    Example:
        >>> head = OuterProduct(torch.tensor([[[2.0]]]), torch.tensor([[[1.0, 5.0, 3.0]]]), (3, 1))
        >>> tied = TiedHead(head, [torch.tensor([[2]])])
        >>> tied.cross(Lookup(torch.tensor([[2]]), torch.tensor([[[10.0]]]), (3, 1))).tolist()
        [[60.0]]
    """

    def __init__(self, head: OuterProduct, ids: Sequence[Tensor]) -> None:
        self._rows = torch.cat([each.flatten() for each in ids]).long().unique()
        self._head = replace(head, e=head.e[:, :, self._rows], shape=(len(self._rows), head.shape[1]))

    @staticmethod
    def applies(term: OuterProduct) -> bool:
        """Whether a term is that of an output layer: an outer product as large as the parameter itself."""
        return term.shape == (term.e.shape[2], term.a.shape[2])

    def cross(self, lookup: Term, chunk_elements: int = CHUNK_ELEMENTS) -> Tensor:
        """``<H_i, L_j>`` for the sum L of the lookups, (B, B) float64."""
        assert isinstance(lookup, Lookup)
        compact, occurring = lookup.compact()
        places = torch.searchsorted(self._rows, occurring)
        head = replace(self._head, e=self._head.e[:, :, places], shape=compact.shape)
        total = torch.zeros(head.batch_size, head.batch_size, dtype=torch.float64, device=head.e.device)
        size = max(1, chunk_elements // max(1, 2 * head.batch_size * head.row_size))
        for start in range(0, head.n_rows, size):
            stop = min(start + size, head.n_rows)
            left, right = head.rows(start, stop).flatten(1), compact.rows(start, stop).flatten(1)
            total += products(left, right, chunk_elements)
        return total
