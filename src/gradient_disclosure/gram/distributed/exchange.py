"""Sends per-example gradients to the processes that multiply them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradient_disclosure.gram.distributed.forms import tensors_in, with_tensors
from gradient_disclosure.gram.distributed.plan import Piece, RankParts
from gradient_disclosure.gram.summed import Single, Term
from gradient_disclosure.gram.terms import concatenate, merge

ALIGNMENT = 16
"""Bytes at whose multiples tensors begin in a message."""

GramOf = Callable[[Term], Tensor]
"""A term of B examples → its Gram (B, B) float64."""


@dataclass(frozen=True)
class Exchange:
    """One rank's view of all ranks.

    Attributes:
        group: the process group, None for the default one.
        rank: this process's place in it.
        sizes: number of examples of each rank.
        forms: of each parameter the parts on each rank, without numbers.
        device: where messages lie.
    """

    group: Any
    rank: int
    sizes: Sequence[int]
    forms: Sequence[RankParts]
    device: torch.device

    def gram(self, pieces: Sequence[Piece], own: list[Term | None], gram_of: GramOf) -> Tensor:
        """This rank's share of the Gram of all examples, for the pieces of one round.

        Args:
            pieces: of the round.
            own: this rank's terms; those of the round are replaced by None once they are sent.
            gram_of: computes the Gram of a term.

        Returns:
            (B, B) float64 of all B examples; the sum over the ranks is the Gram of the pieces' parameters.
        """
        received, kept = self._received(pieces, own)
        total = torch.zeros(sum(self.sizes), sum(self.sizes), dtype=torch.float64, device=self.device)
        for piece in pieces:
            if piece.owner == self.rank:
                parts = [kept[piece] if s == self.rank else received[s].pop(piece) for s in range(len(self.sizes))]
                total += gram_of(self._joined(parts)).to(self.device)
        return total

    def _joined(self, parts: Sequence[Sequence[Single]]) -> Term:
        """The examples of all ranks; zeros where a parameter took no part."""
        known = next(part for rank in parts for part in rank)
        return concatenate(
            [merge(rank) if rank else known.nothing(size) for rank, size in zip(parts, self.sizes, strict=True)]
        )

    def _received(
        self, pieces: Sequence[Piece], own: list[Term | None]
    ) -> tuple[list[dict[Piece, list[Single]]], dict[Piece, list[Single]]]:
        """What every rank sends to this one, and what it sends to itself."""
        ranks = range(len(self.sizes))
        mine = {piece: _parts_of(piece, own[piece.parameter]) for piece in pieces}
        outgoing = [[p for piece in pieces if piece.owner == to != self.rank for p in mine[piece]] for to in ranks]
        incoming = [
            {piece: self._expected(piece, source) for piece in pieces if piece.owner == self.rank != source}
            for source in ranks
        ]
        sent = [sum(map(_room, _tensors(parts))) for parts in outgoing]
        due = [sum(map(_room, _tensors(p for parts in expected.values() for p in parts))) for expected in incoming]
        message = torch.empty(sum(sent), dtype=torch.uint8, device=self.device)
        tensors = _tensors(part for parts in outgoing for part in parts)
        for room, tensor in zip(_rooms(message, tensors), tensors, strict=True):
            room.copy_(tensor)
        kept = {piece: parts for piece, parts in mine.items() if piece.owner == self.rank}
        for piece in pieces:
            own[piece.parameter] = None
        del mine, outgoing, tensors
        arrived = torch.empty(sum(due), dtype=torch.uint8, device=self.device)
        dist.all_to_all_single(arrived, message, due, sent, group=self.group)
        found = []
        for expected, bytes_of in zip(incoming, arrived.split(due), strict=True):
            rooms = _rooms(bytes_of, _tensors(p for parts in expected.values() for p in parts))
            found.append(
                {
                    piece: [with_tensors(part, [next(rooms) for _ in tensors_in(part)]) for part in parts]
                    for piece, parts in expected.items()
                }
            )
        return found, kept

    def _expected(self, piece: Piece, source: int) -> list[Single]:
        return [piece.of(part) for part in self.forms[piece.parameter][source]]


def _parts_of(piece: Piece, term: Term | None) -> list[Single]:
    return [] if term is None else [piece.of(part) for part in term.parts]


def _tensors(parts: Any) -> list[Tensor]:
    return [tensor for part in parts for tensor in tensors_in(part)]


def _room(tensor: Tensor) -> int:
    return -(-tensor.numel() * tensor.element_size() // ALIGNMENT) * ALIGNMENT


def _rooms(message: Tensor, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """Views of a message, one after the other, in the shapes and precisions of some tensors."""
    start = 0
    for tensor in tensors:
        length = tensor.numel() * tensor.element_size()
        yield message[start : start + length].view(tensor.dtype).view(tensor.shape)
        start += _room(tensor)
