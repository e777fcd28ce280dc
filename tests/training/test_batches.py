from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gradient_disclosure.errors import ExampleIdError, UnsupportedTrainingError
from gradient_disclosure.training.batches import PoissonBatches, ShuffledBatches, derived_seed

PLANS = [ShuffledBatches, PoissonBatches]
MEMBERS = torch.arange(0, 300, 3)  # 100 members whose index is not their position


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@given(n=st.integers(1, 60), batch_size=st.integers(1, 70), seed=st.integers(0, 10), epoch=st.integers(0, 10))
def test_shuffled_epoch_uses_each_member_once(n: int, batch_size: int, seed: int, epoch: int) -> None:
    members = torch.arange(n) * 7 + 2
    plan = ShuffledBatches(members, batch_size, seed)
    batches = plan.batches(epoch)
    assert torch.equal(torch.cat(batches).sort().values, members)
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(batches) == plan.steps_per_epoch == math.ceil(n / batch_size)


def test_shuffled_order_is_not_the_order_of_the_members() -> None:
    assert not torch.equal(torch.cat(ShuffledBatches(MEMBERS, 30, 0).batches(0)), MEMBERS)


@pytest.mark.parametrize("kind", PLANS)
def test_batches_depend_on_seed_and_epoch_only(kind: type) -> None:
    plan = kind(MEMBERS, 30, 5)
    third = plan.batches(3)
    plan.batches(0)
    torch.rand(10)
    assert same(plan.batches(3), third)
    assert same(kind(MEMBERS, 30, 5).batches(3), third)
    assert not same(plan.batches(4), third)
    assert not same(kind(MEMBERS, 30, 6).batches(3), third)
    # Seed 5 in epoch 3 and seed 3 in epoch 5 must not meet, as they would if the two were added.
    assert not same(kind(MEMBERS, 30, 3).batches(5), third)


@pytest.mark.parametrize("kind", PLANS)
def test_global_random_state_is_left_alone(kind: type) -> None:
    before = torch.get_rng_state()
    kind(MEMBERS, 30, 5).batches(0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize(("n", "batch_size", "steps"), [(100, 30, 4), (100, 25, 4), (100, 999, 1), (7, 1, 7)])
def test_rate_is_one_over_the_number_of_steps(kind: type, n: int, batch_size: int, steps: int) -> None:
    plan = kind(torch.arange(n), batch_size, 0)
    assert plan.steps_per_epoch == len(plan.batches(0)) == steps
    assert plan.sampling_rate == 1 / steps


def test_poisson_draws_at_the_stated_rate() -> None:
    plan, epochs = PoissonBatches(MEMBERS, 30, 1), 250  # rate 1/4; batch_size / n would be 0.3
    drawn = sum(len(batch) for epoch in range(epochs) for batch in plan.batches(epoch))
    low, high = stats.binom.interval(1 - 1e-6, len(MEMBERS) * plan.steps_per_epoch * epochs, 0.25)
    assert low <= drawn <= high


def test_poisson_draws_are_independent_between_members_and_between_steps() -> None:
    plan, epochs = PoissonBatches(torch.arange(20), 4, 2), 400  # rate 1/5
    drawn = torch.zeros(epochs, 5, 20, dtype=torch.bool)
    for epoch in range(epochs):
        for step, batch in enumerate(plan.batches(epoch)):
            drawn[epoch, step, batch] = True
    batches = epochs * 5
    sizes = drawn.sum(dim=2).flatten()
    # Fixed-size batches would have no spread, and members drawn together too much of it.
    spread = float(((sizes - 4.0) ** 2).sum()) / (20 * 0.2 * 0.8)
    low, high = stats.chi2.interval(1 - 1e-6, batches)
    assert low <= spread <= high
    # Members drawn in both of two steps: without replacement within an epoch there would be none.
    both = int((drawn[:, 0:4:2] & drawn[:, 1:4:2]).sum())
    low, high = stats.binom.interval(1 - 1e-6, epochs * 2 * 20, 0.04)
    assert low <= both <= high
    never = int((~drawn.any(dim=1)).sum())
    low, high = stats.binom.interval(1 - 1e-6, epochs * 20, 0.8**5)
    assert low <= never <= high


def test_poisson_rate_of_one_takes_everybody() -> None:
    (batch,) = PoissonBatches(MEMBERS, 100, 0).batches(0)
    assert torch.equal(batch, MEMBERS)


def test_poisson_batches_can_be_empty() -> None:
    sizes = [len(batch) for batch in PoissonBatches(torch.arange(10), 1, 0).batches(0)]
    assert 0 in sizes
    assert PoissonBatches(torch.arange(10), 1, 0).batches(0)[sizes.index(0)].dtype == torch.int64


@pytest.mark.parametrize("kind", PLANS)
def test_bad_input(kind: type) -> None:
    with pytest.raises(UnsupportedTrainingError, match="members is empty"):
        kind(torch.empty(0, dtype=torch.int64), 4, 0)
    with pytest.raises(UnsupportedTrainingError, match="at least 1, not 0"):
        kind(MEMBERS, 0, 0)
    with pytest.raises(ExampleIdError, match="more than once"):
        kind(torch.tensor([1, 2, 1]), 2, 0)
    with pytest.raises(ExampleIdError, match=r"nonzero\(\)"):
        kind(torch.ones(5, dtype=torch.bool), 2, 0)


def test_derived_seeds_differ_in_the_bits_that_torch_keeps() -> None:
    numbers = [(seed, epoch) for seed in range(30) for epoch in range(30)]
    seeds = {derived_seed(purpose, *pair) % 2**32 for purpose in "ab" for pair in numbers}
    assert len(seeds) == 2 * 30 * 30
    assert derived_seed("a", 1, 11) != derived_seed("a", 11, 1)
