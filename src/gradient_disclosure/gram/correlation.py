"""Per-example gradients of a convolution's weight, without unfolding its input."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from gradient_disclosure.gram.products import TRIANGLE_ROWS, add_square, mirrored, whole_tiles
from gradient_disclosure.gram.summed import CHUNK_ELEMENTS, Single, of_each_example

COPIED_BLOCKS = 3
"""Padded inputs, and output gradients, copied at a time: so many times the entries of a block."""


@dataclass(frozen=True)
class Geometry:
    """Where a convolution reads: output position o meets input position ``o · stride + k · dilation − padding``.

    Attributes:
        kernel: extent of the kernel along each spatial axis.
        stride: one number a spatial axis.
        dilation: one number a spatial axis.
        padding: zeros (before, after) along each spatial axis.

    Example:
        >>> [(phase, shift) for _, phase, shift in Geometry((3,), (2,), (1,), ((1, 1),)).offsets((5,))]
        [(0, 0), (1, 0), (0, 1)]
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    def grid(self, space: Sequence[int], outputs: Sequence[int]) -> tuple[int, ...]:
        """Extent of the padded input along each axis in units of the stride, so that every position read is in it."""
        spans = [d * (k - 1) // s for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True)]
        padded = [n + before + after for n, (before, after) in zip(space, self.padding, strict=True)]
        steps = [-(-n // s) for n, s in zip(padded, self.stride, strict=True)]
        return tuple(max(n, o + span) for n, o, span in zip(steps, outputs, spans, strict=True))

    def offsets(self, grid: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """(kernel position, phase, shift): it reads that phase of the strided input, so far along the flat grid."""
        for number, place in enumerate(product(*map(range, self.kernel))):
            reads = [k * d for k, d in zip(place, self.dilation, strict=True)]
            phase = _flat([r % s for r, s in zip(reads, self.stride, strict=True)], self.stride)
            yield number, phase, _flat([r // s for r, s in zip(reads, self.stride, strict=True)], grid)

    def phases(self, x: Tensor, grid: Sequence[int]) -> Tensor:
        """Padded inputs (N, C, *space) → (phases, N, C, L), the flat grid of each phase with a tail of zeros."""
        dims = len(grid)
        fill: list[int] = []
        for n, g, s, (before, _) in zip(x.shape[2:], grid, self.stride, self.padding, strict=True):
            fill = [before, g * s - n - before, *fill]
        x = F.pad(x, fill)
        split = x.reshape(*x.shape[:2], *(size for g, s in zip(grid, self.stride, strict=True) for size in (g, s)))
        order = [*range(3, 3 + 2 * dims, 2), 0, 1, *range(2, 2 + 2 * dims, 2)]
        return split.permute(order).reshape(math.prod(self.stride), *x.shape[:2], math.prod(grid))


def _flat(place: Sequence[int], extent: Sequence[int]) -> int:
    index = 0
    for at, size in zip(place, extent, strict=True):
        index = index * size + at
    return index


@dataclass(frozen=True)
class Correlation(Single):
    """Per-example gradients ``G_i[r, c, k] = Σ_t e_i[r, t] x_i[c, t · stride + k · dilation − padding]``.

    On the flat grid of the padded input, a kernel position is a mere shift: the gradients at that position are one
    product of the output gradients and a window of the input. Nothing is unfolded.

    Attributes:
        x: (B, U, C, *space) inputs of U uses.
        e: (B, U, m, *outputs) output gradients.
        geometry: stride, dilation and padding.
        groups: the m outputs and C inputs fall into so many groups that do not meet.
        shape: (m, C / groups, *kernel).
    """

    x: Tensor
    e: Tensor
    geometry: Geometry
    groups: int
    shape: tuple[int, ...]

    @property
    def batch_size(self) -> int:
        """Number of examples B."""
        return self.x.shape[0]

    @property
    def values(self) -> Tensor:
        """The output gradients."""
        return self.e

    @property
    def kind(self) -> Hashable:
        """They join if they read the same way from inputs of the same size."""
        return type(self), self.geometry, self.groups, self.x.shape[2:], self.e.shape[2:]

    def rows(self, start: int, stop: int) -> Tensor:
        """The gradients of the outputs ``start`` to ``stop``, (B, stop − start, C / groups · kernel)."""
        kernel = math.prod(self.geometry.kernel)
        found = self.e.new_zeros(self.batch_size, stop - start, self.shape[1], kernel)
        everything = self.batch_size * self.e.numel() * self.x.numel() + 1
        for first, last, channels, at, block in self._products(start, stop, everything):
            found[:, first - start : last - start, channels, at] = block
        return found.flatten(2)

    def blocks(self, chunk_elements: int = CHUNK_ELEMENTS, total: Tensor | None = None) -> Iterator[Tensor]:
        """Blocks (B, w) of the gradients; see :meth:`Term.blocks`."""
        place = None if total is None else total.view(*self.shape[:2], -1)
        for first, last, channels, at, block in self._products(0, self.shape[0], chunk_elements):
            if place is not None:
                place[first:last, channels, at] = block.sum(dim=0)
            yield block.flatten(1)

    def gram(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> Tensor:
        """Inner products, (B, B) float64, by the cheaper of two exact ways."""
        if self._pairs_are_cheaper(chunk_elements):
            return self._gram_by_pairs(chunk_elements, mixed=mixed)
        return self._gram_by_blocks(chunk_elements, mixed=mixed)

    def gram_and_sum(self, chunk_elements: int = CHUNK_ELEMENTS, *, mixed: bool = False) -> tuple[Tensor, Tensor]:
        """Inner products, and the sum over the examples."""
        if self._pairs_are_cheaper(chunk_elements):
            total = self.e.new_empty(self.shape)
            return self._gram_by_pairs(chunk_elements, total, mixed=mixed), total
        return super().gram_and_sum(chunk_elements, mixed=mixed)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``Σ_i w_i G_i`` in the parameter's shape, for ``weights`` (B,); examples of weight 0 are left out."""
        chosen = weights.nonzero().squeeze(1)
        factors = weights[chosen].to(device=self.e.device, dtype=self.e.dtype)
        e = of_each_example(factors, self.e[chosen])
        return replace(self, x=self.x[chosen], e=e)._sum()

    def scaled(self, factors: Tensor) -> Correlation:
        """The same with each example's gradient multiplied by its factor."""
        return replace(self, e=of_each_example(factors, self.e))

    def plus(self, others: Sequence[Correlation]) -> Correlation:
        """All uses side by side."""
        terms = (self, *others)
        return replace(self, x=torch.cat([t.x for t in terms], dim=1), e=torch.cat([t.e for t in terms], dim=1))

    def then(self, others: Sequence[Correlation]) -> Correlation:
        """The examples of all one after the other; fewer uses are filled up with zeros."""
        terms = (self, *others)
        most = max(term.x.shape[1] for term in terms)
        x = [torch.cat([t.x, t.x.new_zeros(len(t.x), most - t.x.shape[1], *t.x.shape[2:])], dim=1) for t in terms]
        e = [torch.cat([t.e, t.e.new_zeros(len(t.e), most - t.e.shape[1], *t.e.shape[2:])], dim=1) for t in terms]
        return replace(self, x=torch.cat(x), e=torch.cat(e))

    def nothing(self, batch_size: int) -> Correlation:
        """No use at all."""
        x, e = self.x, self.e
        return replace(self, x=x.new_zeros(batch_size, 0, *x.shape[2:]), e=e.new_zeros(batch_size, 0, *e.shape[2:]))

    def folded(self, rows: int) -> Correlation:
        """Every ``rows`` consecutive examples as so many uses of one."""

        def side_by_side(tensor: Tensor) -> Tensor:
            return tensor.reshape(len(tensor) // rows, rows * tensor.shape[1], *tensor.shape[2:])

        return replace(self, x=side_by_side(self.x), e=side_by_side(self.e))

    def _sum(self, chunk_elements: int = CHUNK_ELEMENTS) -> Tensor:
        total = self.e.new_zeros(self.shape)
        for _ in self.blocks(chunk_elements, total):
            pass
        return total

    def _products(self, start: int, stop: int, chunk_elements: int) -> Iterator[tuple[int, int, slice, int, Tensor]]:
        """(first row, last row, channels, kernel position, block (B, rows, channels)), examples of all uses together.

        A block has at most about ``chunk_elements`` entries, the copies of inputs and output gradients that it comes
        from a few times as many.
        """
        batch, uses = self.x.shape[:2]
        grid = self.geometry.grid(self.x.shape[3:], self.e.shape[3:])
        positions = self.e.shape[3] * math.prod(grid[1:])
        own, outputs = self.shape[1], self.shape[0] // self.groups
        of_channel = max(1, batch * uses * math.prod(grid) * math.prod(self.geometry.stride))
        channels_at_once = min(own, max(1, COPIED_BLOCKS * chunk_elements // of_channel))
        rows_at_once = min(
            COPIED_BLOCKS * chunk_elements // max(1, batch * uses * positions),
            chunk_elements // max(1, batch * uses * channels_at_once),
        )
        rows_at_once = max(1, min(whole_tiles(max(1, rows_at_once)), stop - start))
        for group in range(start // outputs, -(-stop // outputs)):
            first_row, last_row = max(start, group * outputs), min(stop, (group + 1) * outputs)
            for channel in range(0, own, channels_at_once):
                channels = slice(channel, min(channel + channels_at_once, own))
                x = self._windows(group * own + channels.start, group * own + channels.stop, grid, positions)
                for first in range(first_row, last_row, rows_at_once):
                    last = min(first + rows_at_once, last_row)
                    e = self._spread(first, last, grid, positions)
                    for at, phase, shift in self.geometry.offsets(grid):
                        window = x[phase, :, :, shift : shift + positions].transpose(1, 2)
                        block = torch.bmm(e, window).unflatten(0, (batch, uses))
                        yield first, last, channels, at, block[:, 0] if uses == 1 else block.sum(dim=1)

    def _windows(self, first: int, last: int, grid: Sequence[int], positions: int) -> Tensor:
        """(phases, B·U, channels, L + tail): the tail is as long as the largest shift needs."""
        x = self.geometry.phases(self.x[:, :, first:last].flatten(0, 1), grid)
        longest = max(shift for *_, shift in self.geometry.offsets(grid)) + positions
        return F.pad(x, (0, max(0, longest - x.shape[-1])))

    def _spread(self, first: int, last: int, grid: Sequence[int], positions: int) -> Tensor:
        """(B·U, rows, positions): output gradients on the flat grid, zero between them."""
        e = self.e[:, :, first:last].flatten(0, 1)
        fill: list[int] = []
        for size, extent in zip(e.shape[3:], grid[1:], strict=True):
            fill = [0, extent - size, *fill]
        return F.pad(e, fill).flatten(2) if any(fill) else e.flatten(2)

    def _pairs_are_cheaper(self, chunk_elements: int) -> bool:
        """Multiply-adds of both ways, those in float64 counted twice (spec, Cost); no, if pairs do not fit."""
        if self.groups > 1:
            return False
        batch, uses = self.x.shape[:2]
        positions, entries = uses * math.prod(self.e.shape[3:]), math.prod(self.shape)
        pairs = (batch * positions) ** 2
        if pairs > chunk_elements:
            return False
        return pairs * (self.shape[0] + entries // max(1, self.shape[0])) <= entries * batch * (positions / 2 + batch)

    def _gram_by_pairs(
        self, chunk_elements: int = CHUNK_ELEMENTS, total: Tensor | None = None, *, mixed: bool = False
    ) -> Tensor:
        """``Σ_{t,s} (window_it · window_js)(e_it · e_js)``: all PAIRS of positions; ``total``: filled with the sum."""
        batch, uses, outputs = self.e.shape[:3]
        positions = uses * math.prod(self.e.shape[3:])
        e = self.e.flatten(3).transpose(2, 3).reshape(batch * positions, outputs)
        of_x = e.new_zeros(len(e), len(e), dtype=torch.float64)
        of_e = torch.zeros_like(of_x)
        rows = positions * max(1, TRIANGLE_ROWS // max(1, positions))  # no example is cut by the diagonal
        width = max(1, chunk_elements // max(1, len(e)))
        for piece in e.split(width, dim=1):
            add_square(of_e, piece, rows, mixed=mixed)
        for first in range(0, self.x.shape[2], width):
            for at, window in enumerate(self.windows(first, first + width)):
                read = window.flatten(2).transpose(1, 2).flatten(0, 1)
                add_square(of_x, read, rows, mixed=mixed)
                if total is not None:
                    total.flatten(2)[:, first : first + width, at] = e.T @ read
        pairs = of_x.mul_(of_e).reshape(batch, positions, batch, positions).sum(dim=(1, 3))
        return mirrored(pairs)

    def windows(self, first: int = 0, last: int | None = None) -> Iterator[Tensor]:
        """What the output positions read at each position of the kernel, (B·U, channels first to last, *outputs)."""
        outputs = self.e.shape[3:]
        grid = self.geometry.grid(self.x.shape[3:], outputs)
        x = self.geometry.phases(self.x[:, :, first:last].flatten(0, 1), grid).unflatten(-1, grid)
        for place in product(*map(range, self.geometry.kernel)):
            reads = [k * d for k, d in zip(place, self.geometry.dilation, strict=True)]
            steps = list(zip(reads, self.geometry.stride, outputs, strict=True))
            phase = _flat([r % s for r, s, _ in steps], self.geometry.stride)
            yield x[(phase, ..., *(slice(r // s, r // s + o) for r, s, o in steps))]
