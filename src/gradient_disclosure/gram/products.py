"""Sums of products ``X Xᵀ`` in float64 of blocks that come in the model's own precision."""

from __future__ import annotations

import torch
from torch import Tensor

BUFFER_ENTRIES = 262_144
"""Entries converted to float64 at a time on a CPU; 2 MB, so that they are multiplied while still in its cache."""
PIECE = 512
"""Columns of one product of a batched product on a CPU: for few examples many short products run faster than one."""
FEW_EXAMPLES = 96
TRIANGLE_ROWS = 128
"""Rows of a large symmetric product computed at a time: what lies above the diagonal is left out."""


TILES = (128, 64, 32, 16)
"""Numbers of rows at which batched products run at the speed of one large product."""
SHORT = 128
"""Entries of a short sum in float32, where mixed precision is asked for."""
MANY = 1_000_000
"""Entries from which a block is multiplied in mixed precision; fewer cost little in float64."""


def whole_tiles(rows: int) -> int:
    """The number of rows rounded down to a size that batched products are fast at; small ones as they are."""
    tile = next((tile for tile in TILES if tile <= rows), 1)
    return rows - rows % tile


class GramSum:
    """Adds up ``X Xᵀ`` of blocks X (B, w) in float64, in which products of float32 numbers are exact.

    The blocks are converted a few columns at a time into one buffer: a new one for each would cost more than the
    products.

    Args:
        batch_size: B.
        device: of the blocks.
        most_entries: entries in float64 at a time.
        mixed: sum products of large float32 blocks in float32 over 128 entries, and in float64 beyond. Rounding errors
            of the short sums are independent, so that relative to ``|x_i| |x_j|`` about ``3e-8 / √(w / 128)`` remains.

    Example:
        >>> import torch
        >>> total = GramSum(2, torch.device("cpu"))
        >>> total.add(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        >>> total.result().tolist()
        [[5.0, 11.0], [11.0, 25.0]]
    """

    def __init__(
        self, batch_size: int, device: torch.device, most_entries: int = 2_000_000, mixed: bool = False
    ) -> None:
        self._size = batch_size
        self._total = torch.zeros(batch_size, batch_size, dtype=torch.float64, device=device)
        entries = min(most_entries, BUFFER_ENTRIES) if device.type == "cpu" else most_entries
        columns = max(1, entries // max(1, batch_size))
        self._in_pieces = device.type == "cpu" and batch_size <= FEW_EXAMPLES and columns >= PIECE
        self._mixed = mixed and torch.get_float32_matmul_precision() == "highest"
        self._columns = columns // PIECE * PIECE if self._in_pieces else columns
        self._buffer: Tensor | None = None
        self._partial: Tensor | None = None

    def add(self, block: Tensor) -> None:
        """Add ``block @ blockᵀ`` for ``block`` (B, w)."""
        if self._mixed and block.dtype == torch.float32 and block.numel() >= MANY:
            block = self._add_mixed(block)
        for start in range(0, block.shape[1], self._columns):
            columns = block[:, start : start + self._columns]
            if self._in_pieces and columns.shape[1] == self._columns:
                self._add_in_pieces(columns)
            else:
                add_symmetric(self._total, columns.double())

    def result(self) -> Tensor:
        """The sum so far, (B, B) float64, symmetric; the object is not used any further."""
        if self._partial is not None:
            self._total += self._partial.sum(dim=0)
            self._partial = None
        return mirrored(self._total)

    def _add_mixed(self, block: Tensor) -> Tensor:
        """Adds all short sums that are whole; returns the rest."""
        whole = block.shape[1] - block.shape[1] % SHORT
        short = block[:, :whole].unflatten(1, (-1, SHORT)).transpose(0, 1)
        self._total += torch.bmm(short, short.transpose(1, 2)).sum(dim=0, dtype=torch.float64)
        return block[:, whole:]

    def _add_in_pieces(self, columns: Tensor) -> None:
        count = self._columns // PIECE
        if self._buffer is None or self._partial is None:
            self._buffer = self._total.new_empty(count, self._size, PIECE)
            self._partial = self._total.new_zeros(count, self._size, self._size)
        self._buffer.copy_(columns.unflatten(1, (count, PIECE)).transpose(0, 1))
        torch.baddbmm(self._partial, self._buffer, self._buffer.transpose(1, 2), out=self._partial)


def add_symmetric(total: Tensor, x: Tensor) -> None:
    """Add ``x xᵀ`` to ``total`` (float64) on and below the diagonal; above it, entries are left as they come.

    Args:
        total: (N, N).
        x: (N, w) float64.
    """
    if len(total) <= TRIANGLE_ROWS:
        total.addmm_(x, x.T)
        return
    for start in range(0, len(total), TRIANGLE_ROWS):
        stop = start + TRIANGLE_ROWS
        total[start:stop, :stop].addmm_(x[start:stop], x[:stop].T)


def mirrored(total: Tensor) -> Tensor:
    """The symmetric matrix with the lower triangle of ``total``."""
    return total if len(total) <= TRIANGLE_ROWS else total.tril() + total.tril(-1).T


def products(left: Tensor, right: Tensor, most_entries: int) -> Tensor:
    """``left @ rightᵀ`` in float64, (N, M), the columns converted a few at a time.

    Args:
        left: (N, w).
        right: (M, w).
        most_entries: entries in float64 at a time, beside the result.
    """
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    entries = min(most_entries, BUFFER_ENTRIES) if left.device.type == "cpu" else most_entries
    height = max(1, len(left), len(right))
    width = max(entries // height, height)  # narrower, reading and writing the result would cost the most
    for start in range(0, left.shape[1], width):
        total.addmm_(left[:, start : start + width].double(), right[:, start : start + width].double().T)
    return total
