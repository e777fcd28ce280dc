"""What of a module is in its Gram matrix, in which way it was found, and what that cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gradient_disclosure.gram.account import ParameterAccount


@dataclass(frozen=True)
class CoverageRow:
    """One parameter.

    Attributes:
        parameter: its qualified name.
        entries: number of its entries.
        ways: how its per-example gradients were found: the layer type, or the operation; empty if it took no part.
        seconds: wall-clock time that took, without the products of the Gram matrix.
        took_part: whether a gradient arrived.
    """

    parameter: str
    entries: int
    ways: tuple[str, ...]
    seconds: float
    took_part: bool

    @classmethod
    def of(cls, account: ParameterAccount) -> CoverageRow:
        """The row of an account that is closed."""
        return cls(
            account.name,
            account.parameter.numel(),
            tuple(account.ways),
            sum(account.ways.values()),
            account.contributed,
        )


@dataclass(frozen=True)
class CoverageReport:
    """All parameters that were to be covered.

    Attributes:
        rows: one a parameter, in the order of ``named_parameters``.
        coverage: fraction of all trainable entries that were to be covered; 1.0 unless some were excluded.

    Example:
        >>> import torch
        >>> from gradient_disclosure import GradientGram
        >>> model = torch.nn.Linear(3, 2, bias=False)
        >>> with GradientGram(model) as gram:
        ...     model(torch.ones(4, 3)).mean().backward()
        >>> [(row.parameter, row.entries, row.ways) for row in gram.report]
        [('weight', 6, ('Linear',))]
    """

    rows: tuple[CoverageRow, ...]
    coverage: float

    def __iter__(self) -> Iterator[CoverageRow]:
        return iter(self.rows)

    def by_way(self) -> dict[str, tuple[int, float]]:
        """Entries and seconds of each way; a parameter found in several ways counts for their combination."""
        found: dict[str, tuple[int, float]] = {}
        for row in self.rows:
            way = " + ".join(row.ways) if row.took_part else "took no part in this step"
            entries, seconds = found.get(way, (0, 0.0))
            found[way] = (entries + row.entries, seconds + row.seconds)
        return found

    def __str__(self) -> str:
        lines = [f"coverage {self.coverage:.1%} of the trainable entries"]
        for way, (entries, seconds) in sorted(self.by_way().items(), key=lambda item: -item[1][1]):
            lines.append(f"  {entries:>12,} entries  {1e3 * seconds:8.1f} ms  {way}")
        return "\n".join(lines)
