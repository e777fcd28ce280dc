"""N examples in tiles of equal size, the last one perhaps smaller."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiling:
    """Which examples form which tile.

    Attributes:
        size: number of examples N.
        tile: examples of a tile.

    Example:
        >>> tiling = Tiling(size=5, tile=2)
        >>> [tiling.span(k) for k in range(tiling.count)]
        [(0, 2), (2, 4), (4, 5)]
    """

    size: int
    tile: int

    def __post_init__(self) -> None:
        if self.tile < 1:
            raise ValueError(f"a tile must hold at least 1 example, got {self.tile}")

    @property
    def count(self) -> int:
        """Number of tiles along one side."""
        return -(-self.size // self.tile)

    def span(self, k: int) -> tuple[int, int]:
        """First example of tile ``k``, and the one after its last."""
        return k * self.tile, min((k + 1) * self.tile, self.size)

    def length(self, k: int) -> int:
        """Examples of tile ``k``."""
        start, stop = self.span(k)
        return stop - start
