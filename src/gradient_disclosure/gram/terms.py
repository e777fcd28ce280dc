"""Per-example gradients in the forms they come in, and their inner products.

One canonical layout: a weight of shape (m, n) that is used at T positions has inputs ``a`` (B, T, n) and output
gradients ``e`` (B, T, m); the gradient of example i is ``G_i = Σ_t e_it a_itᵀ``. Every layer is brought into this
layout or, where its per-example gradient is small, into a dense (B, P) matrix. Nothing below knows of modules.

Inner products are summed in float64: the Gram matrix is then, to rounding in float64, the exact Gram of the per-example
gradients as the model's own precision gives them, hence positive semi-definite, as a solve with a small damping needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK_ELEMENTS = 2_000_000
"""Entries of a block of per-example gradients; 8 MB in float32 was the fastest size measured (spec, Cost)."""


@dataclass(frozen=True)
class OuterProduct:
    """Per-example gradients ``Σ_t e_it a_itᵀ`` of a weight (m, n), possibly in groups of output rows.

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

    def gram(self) -> Tensor:
        """Inner products ``<G_i, G_j>``, (B, B) float64, by the cheaper of two exact ways."""
        if self._pairs_are_cheaper():
            return self._gram_by_pairs()
        return self._gram_by_blocks()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i`` in the parameter's shape and the gradients' precision, for ``weights`` (B,).

        Examples of weight 0 are left out, not multiplied by 0: their gradient may be NaN.
        """
        chosen, weights = _non_zero(weights, self.e)
        weighted = self.e[chosen] * weights[:, None, None]
        total = weighted.flatten(0, 1).T @ self.a[chosen].flatten(0, 1)
        return total.reshape(self.shape)

    def per_example(self) -> Tensor:
        """The gradients themselves, (B, m·n)."""
        return torch.bmm(self.e.transpose(1, 2), self.a).flatten(1)

    def _pairs_are_cheaper(self) -> bool:
        """Multiply-adds of both ways, the Gram's symmetry not used (spec, Cost)."""
        batch, positions, n = self.a.shape
        m = self.e.shape[2]
        pairs = batch**2 * positions**2 * (n + m)
        blocks = batch * positions * n * m + batch**2 * n * m
        return pairs <= blocks

    def _gram_by_pairs(self) -> Tensor:
        """``K_ij = Σ_{t,s} (a_it·a_js)(e_it·e_js)``: all PAIRS of positions, exact for sequences too."""
        batch, positions = self.a.shape[:2]
        a = self.a.flatten(0, 1).double()
        e = self.e.flatten(0, 1).double()
        pairs = (a @ a.T).mul_(e @ e.T)
        if positions == 1:
            return pairs
        return pairs.reshape(batch, positions, batch, positions).sum(dim=(1, 3))

    def _gram_by_blocks(self) -> Tensor:
        """Gram of the materialized gradients, one block of output rows at a time."""
        batch, _, n = self.a.shape
        m = self.e.shape[2]
        rows = max(1, CHUNK_ELEMENTS // max(1, batch * n))
        gram = torch.zeros(batch, batch, dtype=torch.float64, device=self.a.device)
        transposed = self.e.transpose(1, 2)
        for start in range(0, m, rows):
            block = torch.bmm(transposed[:, start : start + rows], self.a).flatten(1).double()
            gram += block @ block.T
        return gram


@dataclass(frozen=True)
class Dense:
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

    def gram(self) -> Tensor:
        """Inner products ``<g_i, g_j>``, (B, B) float64."""
        g = self.g.double()
        return g @ g.T

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i g_i`` in the parameter's shape, for ``weights`` (B,); those of weight 0 are left out."""
        chosen, weights = _non_zero(weights, self.g)
        return (weights @ self.g[chosen]).reshape(self.shape)

    def per_example(self) -> Tensor:
        """The gradients themselves, (B, P)."""
        return self.g


Term = OuterProduct | Dense


def _non_zero(weights: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of the weights that are not 0, and these weights, on the device and in the precision of ``like``."""
    weights = weights.to(device=like.device, dtype=like.dtype)
    chosen = weights.nonzero().squeeze(1)
    return chosen, weights[chosen]


def merge(terms: Sequence[Term]) -> Term:
    """The sum of several uses of ONE parameter, as a single term.

    A parameter used more than once has the sum of its uses' gradients, so its inner products contain cross terms. Outer
    products add by laying their positions side by side; anything else adds as dense matrices.

    Args:
        terms: one term a use, all of the same batch size and parameter shape.

    Returns:
        A term whose per-example gradients are the sums of those given.

    Example:
        >>> import torch
        >>> use = Dense(torch.tensor([[1.0], [2.0]]), (1,))
        >>> merge([use, use]).gram().tolist()
        [[4.0, 8.0], [8.0, 16.0]]
    """
    if len(terms) == 1:
        return terms[0]
    outer = [term for term in terms if isinstance(term, OuterProduct)]
    if len(outer) == len(terms) and len({(term.a.shape[2], term.e.shape[2]) for term in outer}) == 1:
        a = torch.cat([term.a for term in outer], dim=1)
        e = torch.cat([term.e for term in outer], dim=1)
        return OuterProduct(a, e, outer[0].shape)
    return Dense(torch.stack([term.per_example() for term in terms]).sum(dim=0), terms[0].shape)
