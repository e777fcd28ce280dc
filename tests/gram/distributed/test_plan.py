from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradient_disclosure.gram.correlation import Correlation, Geometry
from gradient_disclosure.gram.distributed.forms import PartForm, tensors_in, with_tensors
from gradient_disclosure.gram.distributed.pieces import can_split, rows_of, smallest
from gradient_disclosure.gram.distributed.plan import cost_of, planned
from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.summed import Single
from gradient_disclosure.gram.terms import Dense, merge


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


GEOMETRY = Geometry((3,), (2,), (1,), ((1, 1),))
PARTS: dict[str, Single] = {
    "outer": OuterProduct(random(3, 4, 5), random(3, 4, 6), (6, 5)),
    "outer of several rows in one": OuterProduct(random(3, 4, 5), random(3, 4, 6), (3, 10)),
    "lookup": Lookup(torch.tensor([[0, 5, -1], [2, 2, 5], [1, 0, 3]]), random(3, 3, 4), (6, 4)),
    "dense": Dense(random(3, 24), (6, 2, 2)),
    "vector": Dense(random(3, 6), (6,)),
    "correlation": Correlation(random(3, 1, 2, 7), random(3, 1, 6, 4), GEOMETRY, 1, (6, 2, 3)),
}


@pytest.mark.parametrize("name", PARTS)
def test_rows_of_a_part_are_its_rows(name: str) -> None:
    part = PARTS[name]
    assert can_split(part)
    whole = part.per_example().reshape(3, part.n_rows, -1)
    pieces = [rows_of(part, start, stop) for start, stop in ((0, 1), (1, 3), (3, part.n_rows)) if start < part.n_rows]
    for piece, start in zip(pieces, (0, 1, 3), strict=False):
        expected = whole[:, start : start + piece.n_rows]
        torch.testing.assert_close(piece.per_example().reshape(expected.shape), expected)
    torch.testing.assert_close(sum(piece.gram() for piece in pieces), part.gram())


@pytest.mark.parametrize("name", PARTS)
def test_a_form_is_enough_to_receive_a_part(name: str) -> None:
    part = PARTS[name]
    empty = PartForm.of(part).without_numbers()
    assert all(tensor.is_meta for tensor in tensors_in(empty))
    again = with_tensors(rows_of(empty, 1, 2), tensors_in(rows_of(part, 1, 2)))
    assert [tuple(t.shape) for t in tensors_in(rows_of(empty, 1, 2))] == [tuple(t.shape) for t in tensors_in(again)]
    assert torch.equal(again.per_example(), rows_of(part, 1, 2).per_example())


def test_groups_and_rows_across_an_outer_product_are_not_cut() -> None:
    assert not can_split(Correlation(random(3, 1, 4, 7), random(3, 1, 6, 4), GEOMETRY, 2, (6, 2, 3)))
    assert not can_split(OuterProduct(random(3, 4, 5), random(3, 4, 6), (10, 3)))


def test_the_smallest_form_has_the_same_gradients() -> None:
    long = OuterProduct(random(2, 50, 5), random(2, 50, 6), (6, 5))
    assert isinstance(smallest(long), Dense)
    torch.testing.assert_close(smallest(long).gram(), long.gram())
    short = OuterProduct(random(2, 1, 5), random(2, 1, 6), (6, 5))
    assert smallest(short) is short
    assert smallest(merge([short, Dense(random(2, 30), (6, 5))])).batch_size == 2


def plan_of(parts: list[Single], ranks: int = 2, round_bytes: int = 10**9) -> list[list[tuple[int, object, int]]]:
    empty = [[[PartForm.of(part).without_numbers()]] * ranks for part in parts]
    return [[(p.parameter, p.rows, p.owner) for p in pieces] for pieces in planned(empty, ranks, round_bytes)]


def test_a_large_parameter_is_divided_and_small_ones_go_whole() -> None:
    head, small = OuterProduct(random(2, 9, 20), random(2, 9, 40), (40, 20)), Dense(random(2, 8), (8,))
    (pieces,) = plan_of([small, head, small])
    assert sorted(p for p in pieces if p[0] == 1) == [(1, (0, 20), 0), (1, (20, 40), 1)]
    assert {p[2] for p in pieces if p[0] != 1} == {0, 1}


def test_every_row_is_in_one_piece_and_the_work_is_even() -> None:
    parts: list[Single] = [
        OuterProduct(random(2, 9, n), random(2, 9, m), (m, n)) for n, m in ((8, 30), (30, 8), (8, 8))
    ]
    busy = [0.0] * 3
    for pieces in plan_of(parts, ranks=3):
        for parameter, rows, owner in pieces:
            part = parts[parameter] if rows is None else rows_of(parts[parameter], *rows)  # type: ignore[misc]
            busy[owner] += cost_of([[part]] * 3)
    rows = [list(range(*(p[1] or (0, parts[p[0]].n_rows)))) for r in plan_of(parts, 3) for p in r]  # type: ignore[misc]
    assert sum(map(len, rows)) == sum(part.n_rows for part in parts)
    assert max(busy) < 1.5 * sum(busy) / 3


def test_rounds_are_bounded() -> None:
    part = Dense(random(4, 100), (10, 10))  # 3200 bytes
    rounds = plan_of([part] * 6, round_bytes=7000)
    assert len(rounds) == 3
    assert math.isclose(cost_of([[], []]), 0.0)


def test_a_parameter_that_nobody_used_has_no_piece() -> None:
    assert planned([[[], []]], 2, 10**9) == []
