"""Convolutions' weight gradients on the flat grid, against autograd one example at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradient_disclosure.gram.correlation import Correlation, Geometry
from gradient_disclosure.gram.fold import folded
from gradient_disclosure.gram.terms import concatenate, merge
from tests.gram.test_terms import assert_equal, assert_has_gradients, largest_tensor

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def correlation(
    batch: int, space: tuple[int, ...], geometry: Geometry, groups: int, outputs: int, inputs: int
) -> tuple[Correlation, Tensor]:
    """A term of one use, and the explicit gradients (B, P) by autograd."""
    weight = torch.zeros(outputs, inputs // groups, *geometry.kernel, dtype=torch.float64, requires_grad=True)
    x = torch.randn(batch, inputs, *space, dtype=torch.float64)
    fill = [side for both in reversed(geometry.padding) for side in both]
    convolve = CONVOLUTIONS[len(space)]
    y = convolve(F.pad(x, fill), weight, None, geometry.stride, 0, geometry.dilation, groups)
    e = torch.randn_like(y)
    rows = [torch.autograd.grad(y[i], weight, e[i], retain_graph=True)[0].flatten() for i in range(batch)]
    term = Correlation(x.unsqueeze(1), e.unsqueeze(1), geometry, groups, tuple(weight.shape))
    return term, torch.stack(rows) if rows else e.new_zeros(0, weight.numel())


@st.composite
def geometries(draw: st.DrawFn) -> tuple[Geometry, tuple[int, ...]]:
    dims = draw(st.integers(1, 3))

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(dims))

    padding = tuple(zip(numbers(0, 2), numbers(0, 2), strict=True))
    geometry = Geometry(numbers(1, 3), numbers(1, 3), numbers(1, 2), padding)
    return geometry, numbers(1, 6)


@settings(max_examples=80, deadline=None)
@given(found=geometries(), batch=st.integers(0, 3), groups=st.integers(1, 2), seed=st.integers(0, 99))
def test_any_geometry(found: tuple[Geometry, tuple[int, ...]], batch: int, groups: int, seed: int) -> None:
    geometry, space = found
    reach = [d * (k - 1) + 1 for k, d in zip(geometry.kernel, geometry.dilation, strict=True)]
    assume(all(n + sum(p) >= r for n, p, r in zip(space, geometry.padding, reach, strict=True)))
    torch.manual_seed(seed)
    term, gradients = correlation(batch, space, geometry, groups, 2 * groups, 3 * groups)
    assert_has_gradients(term, gradients)


def plain(side: int = 6, batch: int = 4) -> tuple[Correlation, Tensor]:
    torch.manual_seed(side)
    return correlation(batch, (side, side), Geometry((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))), 1, 5, 3)


def ways(term: Correlation) -> Iterator[Tensor]:
    for chunk in (7, 200, 2_000_000):
        yield term._gram_by_pairs(chunk)
        yield term._gram_by_blocks(chunk)
        yield term.gram_and_sum(chunk)[0]


@pytest.mark.parametrize("side", [2, 6, 13])
def test_pairs_and_blocks_agree_and_give_the_sum(side: int) -> None:
    """13 · 13 positions: the pairs are computed in several triangles."""
    term, gradients = plain(side)
    for gram in ways(term):
        assert_equal(gram, gradients @ gradients.T)
    for pairs in (False, True):
        total = torch.full(term.shape, math.nan, dtype=torch.float64)
        (term._gram_by_pairs if pairs else term._gram_by_blocks)(300, total)
        assert_equal(total.flatten(), gradients.sum(dim=0))


@pytest.mark.parametrize(("side", "by_pairs"), [(1, True), (12, False)])
def test_the_cheaper_way_is_taken(side: int, by_pairs: bool) -> None:
    term, _ = plain(side)
    assert term._pairs_are_cheaper(2_000_000) == by_pairs
    assert not term._pairs_are_cheaper(3)  # pairs that do not fit are not formed


def test_a_shared_convolution() -> None:
    (first, one), (second, two), (other, three) = plain(6), plain(6), plain(4)
    term = merge([first, second, other])
    assert len(term.parts) == 2  # only inputs of one size lie side by side
    assert_has_gradients(term, one + two + three)


def test_micro_batches_and_folded_rows() -> None:
    (first, one), (second, two) = plain(6), plain(6, batch=3)
    assert_has_gradients(concatenate([first, second]), torch.cat([one, two]))
    assert_has_gradients(concatenate([merge([first, first]), second]), torch.cat([2 * one, two]))
    assert_has_gradients(folded(first, 2), one.unflatten(0, (2, 2)).sum(dim=1))


def test_no_more_is_formed_at_a_time_than_asked_for() -> None:
    geometry = Geometry((3, 3), (1, 1), (1, 1), ((1, 1), (1, 1)))
    term, gradients = correlation(4, (8, 8), geometry, 1, 16, 16)
    chunk = 1000
    assert largest_tensor(lambda: term._gram_by_blocks(chunk)) <= 4 * chunk < gradients.numel()
    assert largest_tensor(lambda: term._gram_by_blocks(10**9)) > 4 * chunk
