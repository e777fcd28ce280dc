from __future__ import annotations

import pytest
import torch

from gradient_disclosure.data.splits import draw_rows, split_rows


def test_a_draw_has_different_rows_in_range():
    rows = draw_rows(100, 30, seed=1, dataset="d", part="pool")
    assert rows.dtype == torch.int64
    assert len(set(rows.tolist())) == 30
    assert set(rows.tolist()) <= set(range(100))


def test_none_draws_every_row():
    assert sorted(draw_rows(50, None, seed=1, dataset="d", part="pool").tolist()) == list(range(50))


def test_the_seed_alone_decides():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = draw_rows(100, 30, seed=1, dataset="d", part="pool")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(6)
    assert torch.equal(first, draw_rows(100, 30, seed=1, dataset="d", part="pool"))
    assert not torch.equal(first, draw_rows(100, 30, seed=2, dataset="d", part="pool"))


def test_a_larger_draw_contains_the_smaller():
    small, large = (draw_rows(100, size, seed=3, dataset="d", part="pool") for size in (10, 40))
    assert set(small.tolist()) < set(large.tolist())


def test_every_row_is_drawn_equally_often():
    counts = torch.zeros(10)
    for seed in range(2000):
        counts[draw_rows(10, 3, seed=seed, dataset="d", part="pool")] += 1
    # Binomial(2000, 0.3): standard deviation 20.5, so 100 is almost five of them.
    assert (counts - 600).abs().max() < 100


@pytest.mark.parametrize("size", [101, 0, -1])
def test_an_impossible_draw_names_the_numbers(size: int):
    with pytest.raises(ValueError, match=rf"mnist: pool_size={size} .* 100 examples"):
        draw_rows(100, size, seed=0, dataset="mnist", part="pool")


def test_pool_and_test_are_disjoint_and_of_the_sizes_asked_for():
    pool, test = split_rows(100, 60, 25, seed=0, dataset="d")
    assert (len(pool), len(test)) == (60, 25)
    assert len(set(pool.tolist()) | set(test.tolist())) == 85


@pytest.mark.parametrize(("pool_size", "test_size"), [(None, 30), (70, None), (70, 30)])
def test_none_takes_the_rest(pool_size: int | None, test_size: int | None):
    pool, test = split_rows(100, pool_size, test_size, seed=0, dataset="d")
    assert (len(pool), len(test)) == (70, 30)
    assert sorted(pool.tolist() + test.tolist()) == list(range(100))


def test_the_size_of_one_part_leaves_the_other_alone():
    small_pool, test = split_rows(100, 20, 25, seed=0, dataset="d")
    large_pool, same_test = split_rows(100, 70, 25, seed=0, dataset="d")
    assert torch.equal(test, same_test)
    assert torch.equal(small_pool, large_pool[:20])


@pytest.mark.parametrize("sizes", [(None, None), (80, 21), (0, 10), (10, 0), (None, 100), (-5, 10)])
def test_impossible_sizes_name_the_numbers(sizes: tuple[int | None, int | None]):
    with pytest.raises(ValueError, match=rf"digits: pool_size={sizes[0]} and test_size={sizes[1]} .* 100 examples"):
        split_rows(100, *sizes, seed=0, dataset="digits")
