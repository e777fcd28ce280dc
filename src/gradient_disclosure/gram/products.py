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
"""Entries of a short sum in float32, where mixed precision is asked for; with more examples, as many as pay for the
(B, B) result of each: 8 B."""
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
        mixed: sum products of float32 blocks in float32 over 128 entries or 8 B, and in float64 beyond. Rounding errors
            of the short sums are independent: of millions of entries, a few 1e-9 of ``|x_i| |x_j|`` remain.

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
        if self._mixed and block.dtype == torch.float32:
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
        size = max(SHORT, 8 * self._size)
        whole = block.shape[1] - block.shape[1] % size
        if whole == 0:
            return block
        short = block[:, :whole].unflatten(1, (-1, size)).transpose(0, 1)
        self._total += torch.bmm(short, short.transpose(1, 2)).sum(dim=0, dtype=torch.float64)
        return block[:, whole:]

    def _add_in_pieces(self, columns: Tensor) -> None:
        count = self._columns // PIECE
        if self._buffer is None or self._partial is None:
            self._buffer = self._total.new_empty(count, self._size, PIECE)
            self._partial = self._total.new_zeros(count, self._size, self._size)
        self._buffer.copy_(columns.unflatten(1, (count, PIECE)).transpose(0, 1))
        torch.baddbmm(self._partial, self._buffer, self._buffer.transpose(1, 2), out=self._partial)


def square(x: Tensor) -> Tensor:
    """``x xᵀ`` in float64, (N, N), of a matrix (N, w) that is small enough to be converted at once."""
    x = x.double()
    pieces = x.shape[1] // PIECE if x.device.type == "cpu" and len(x) <= FEW_EXAMPLES else 0
    if pieces < 2:
        return x @ x.T
    several = x[:, : pieces * PIECE].unflatten(1, (pieces, PIECE)).transpose(0, 1)
    rest = x[:, pieces * PIECE :]
    return torch.bmm(several, several.transpose(1, 2)).sum(dim=0).addmm_(rest, rest.T)


def add_symmetric(total: Tensor, x: Tensor, rows: int = TRIANGLE_ROWS) -> None:
    """Add ``x xᵀ`` to ``total`` on and below the diagonal; above it, only some entries are added to.

    Args:
        total: (N, N) float64.
        x: (N, w) float64; or float32, whose products are then summed in float32.
        rows: so many rows at a time, up to the diagonal and what of it they share.
    """
    for start in range(0, len(total), max(1, rows)):
        stop = start + rows
        _add_product(total[start:stop, :stop], x[start:stop], x[:stop])


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    if left.dtype == total.dtype:
        total.addmm_(left, right.T)
    else:
        total += left @ right.T


def add_square(total: Tensor, x: Tensor, rows: int, *, mixed: bool) -> None:
    """As :func:`add_symmetric`, for x of any precision and few columns; ``mixed``: float32 is not converted."""
    stays = mixed and x.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    add_symmetric(total, x if stays else x.double(), rows)


def mirrored(total: Tensor) -> Tensor:
    """The symmetric matrix with the lower triangle of ``total``."""
    return total.tril() + total.tril(-1).T


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
