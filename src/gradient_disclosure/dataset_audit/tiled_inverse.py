"""Cholesky factor of K + λI and the diagonal of its inverse, tile by tile: pure functions of tiles.

The lower factor L is made by rows of tiles, each tile once and for all (left-looking), so that a finished tile never
changes. The inverse is never formed: column by column of tiles, L⁻¹ is solved for, squared and dropped. 2N³/3 flops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from gradient_disclosure.errors import IllConditionedGramError

ReadTile = Callable[[int, int], Tensor]
"""(row, column) → the finished tile of L, float64."""


def factor_tile(gram: Tensor, row: Iterable[Tensor], column: Iterable[Tensor], diagonal: Tensor) -> Tensor:
    """Tile ``L_ij``, j < i, from the tiles to its left.

    Args:
        gram: (b, c) tile K_ij; it is overwritten.
        row: L_i0 … L_i,j−1, each (b, ·).
        column: L_j0 … L_j,j−1, each (c, ·).
        diagonal: (c, c) L_jj.

    Returns:
        ``(K_ij − Σ_k L_ik L_jkᵀ) L_jj⁻ᵀ``, (b, c).

    Example:
        >>> import torch
        >>> factor_tile(torch.tensor([[6.0]]), [], [], torch.tensor([[2.0]])).item()
        3.0
    """
    for left, right in zip(row, column, strict=True):
        gram.addmm_(left, right.T, alpha=-1.0)
    tile: Tensor = torch.linalg.solve_triangular(diagonal.T, gram, upper=True, left=False)
    return tile.contiguous()


def factor_diagonal_tile(gram: Tensor, row: Iterable[Tensor], damping: float) -> Tensor:
    """Tile ``L_ii`` from the tiles to its left.

    Args:
        gram: (b, b) tile K_ii, without damping; it is overwritten.
        row: L_i0 … L_i,i−1.
        damping: λ.

    Returns:
        (b, b) lower triangular.

    Raises:
        IllConditionedGramError: not positive definite in float64.
    """
    gram.diagonal().add_(damping)
    for left in row:
        gram.addmm_(left, left.T, alpha=-1.0)
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(gram)
    if failed.item():
        raise IllConditionedGramError(
            f"K + λI is not positive definite at λ = {damping:.3g}: the Gram matrix is not positive semi-definite to "
            "within λ in float64. Raise the damping."
        )
    return factor.contiguous()


def pivot_excess(squared_norms: Tensor, row: Iterable[Tensor], diagonal: Tensor) -> Tensor:
    """``d_j = K_jj − Σ_{k<j} L_jk² = L_jj² − λ``, without the cancellation against λ.

    Args:
        squared_norms: (b,) K_jj of the examples of the tile.
        row: L_i0 … L_i,i−1.
        diagonal: (b, b) L_ii.

    Returns:
        (b,) float64: what of ‖g_j‖² the examples before j leave, damped.
    """
    explained = diagonal.tril(diagonal=-1).square().sum(dim=1)
    for left in row:
        explained = explained + left.square().sum(dim=1)
    return squared_norms - explained


def inverse_tails(tile: int, count: int, read: ReadTile) -> Tensor:
    """Squared norms of the columns of L⁻¹ in one column of tiles, without their diagonal entries.

    Args:
        tile: which column of tiles.
        count: tiles along one side.
        read: gives the tiles of L.

    Returns:
        (b,) float64, ``Σ_{i>j} (L⁻¹)_ij²``.

    Example:
        >>> import torch
        >>> inverse_tails(0, 1, lambda i, j: torch.tensor([[2.0, 0.0], [1.0, 1.0]])).tolist()
        [0.25, 0.0]
    """
    diagonal = read(tile, tile)
    identity = torch.eye(len(diagonal), dtype=diagonal.dtype)
    solved = [torch.linalg.solve_triangular(diagonal, identity, upper=False)]
    tails: Tensor = solved[0].tril(diagonal=-1).square().sum(dim=0)
    for i in range(tile + 1, count):
        factor = read(i, i)
        total = torch.zeros(len(factor), len(diagonal), dtype=diagonal.dtype)
        for k, above in enumerate(solved, start=tile):
            total.addmm_(read(i, k), above, alpha=-1.0)
        solved.append(torch.linalg.solve_triangular(factor, total, upper=False))
        tails += solved[-1].square().sum(dim=0)
    return tails
