"""Who computes what: a pure function of what every process knows of all."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise

from gradient_disclosure.gram.correlation import Correlation
from gradient_disclosure.gram.distributed.forms import size_in_bytes
from gradient_disclosure.gram.distributed.pieces import can_split, rows_of
from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.summed import Single

RankParts = Sequence[Sequence[Single]]
"""Parts of one parameter's term on each rank, none where it took no part there."""


@dataclass(frozen=True)
class Piece:
    """Rows of one parameter, and the rank that computes their part of the Gram for the examples of all ranks.

    Attributes:
        parameter: position of the parameter.
        rows: first row and the one after the last; None for the whole parameter.
        owner: rank.
    """

    parameter: int
    rows: tuple[int, int] | None
    owner: int

    def of(self, part: Single) -> Single:
        """What of a part belongs to the piece."""
        return part if self.rows is None else rows_of(part, *self.rows)


@singledispatch
def positions_of(part: Single) -> int:
    """Positions that have to be summed over to write an example's gradients out."""
    return 0


@positions_of.register
def _(part: OuterProduct) -> int:
    return part.a.shape[1]


@positions_of.register
def _(part: Correlation) -> int:
    return part.e.shape[1] * math.prod(part.e.shape[3:])


def cost_of(ranks: RankParts) -> float:
    """Multiply-adds of the Gram of one parameter (spec, Cost), those in float64 counted twice.

    Args:
        ranks: its parts on each rank.
    """
    parts = [part for rank in ranks for part in rank]
    if not parts:
        return 0.0
    batch = sum(next(iter(rank)).batch_size for rank in ranks if rank)
    entries = math.prod(parts[0].shape)
    if all(isinstance(part, Lookup) for part in parts):  # rows that do not occur cost nothing
        occurring = sum(part.ids.numel() for part in parts if isinstance(part, Lookup))
        entries = min(entries, occurring * parts[0].row_size)
    positions: dict[Hashable, int] = {}
    for part in parts:
        positions[part.kind] = max(positions.get(part.kind, 0), positions_of(part))
    total = sum(positions.values())
    written_out = 2.0 * (total / 2 + batch) * batch * entries
    first = parts[0]
    if len(positions) == 1 and isinstance(first, OuterProduct):
        return min(written_out, 2.0 * (batch * total) ** 2 * (first.a.shape[2] + first.e.shape[2]))
    return written_out


def planned(parameters: Sequence[RankParts], n_ranks: int, round_bytes: int) -> list[list[Piece]]:
    """Divide the work among the ranks, in rounds of one exchange each.

    A parameter that costs more than one rank's share of its round is cut by rows. Within a round the most expensive
    piece goes to the rank that has least to do.

    Args:
        parameters: of each parameter the parts on each rank.
        n_ranks: number of processes.
        round_bytes: about how much a rank may send in a round; one parameter is never spread over several.

    Returns:
        Pieces of each round, the same on every rank.
    """
    rounds: list[list[int]] = [[]]
    held = [0] * n_ranks
    for position, ranks in enumerate(parameters):
        if not any(ranks):
            continue
        more = [size_in_bytes(parts) for parts in ranks]
        held = [a + b for a, b in zip(held, more, strict=True)]
        if rounds[-1] and max(held) > round_bytes:
            rounds.append([])
            held = more
        rounds[-1].append(position)
    return [_assigned(chosen, parameters, n_ranks) for chosen in rounds if chosen]


def _assigned(chosen: Sequence[int], parameters: Sequence[RankParts], n_ranks: int) -> list[Piece]:
    costs = {position: cost_of(parameters[position]) for position in chosen}
    share = sum(costs.values()) / n_ranks
    cut: list[tuple[float, int, tuple[int, int] | None]] = []
    for position in chosen:
        spans = _spans(parameters[position], math.ceil(costs[position] / share) if share > 0 else 1)
        for span in spans:
            piece = Piece(position, span, owner=0)
            cost = cost_of([[piece.of(part) for part in parts] for parts in parameters[position]]) if span else None
            cut.append((costs[position] if cost is None else cost, position, span))
    busy = [0.0] * n_ranks
    pieces = []
    for cost, position, span in sorted(cut, key=lambda one: -one[0]):
        owner = busy.index(min(busy))
        busy[owner] += cost
        pieces.append(Piece(position, span, owner))
    return pieces


def _spans(ranks: RankParts, wanted: int) -> list[tuple[int, int] | None]:
    parts = [part for rank in ranks for part in rank]
    rows = parts[0].n_rows
    count = min(wanted, rows)
    if count < 2 or not parts[0].shape or not all(can_split(part) for part in parts):
        return [None]
    edges = [rows * at // count for at in range(count + 1)]
    return list(pairwise(edges))
