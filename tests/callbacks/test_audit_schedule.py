from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from gradient_disclosure.callbacks.audit_schedule import AuditSchedule, StepCounter
from gradient_disclosure.errors import UnsupportedTrainingError


@pytest.mark.parametrize("n", [1, 2, 5, 10, 20])
def test_one_step_of_each_window_is_audited(n: int) -> None:
    schedule = AuditSchedule(n, seed=3)
    for window in range(50):
        assert sum(schedule.audits(step) for step in range(window * n, (window + 1) * n)) == 1


@pytest.mark.parametrize("n", [2, 5, 10])
def test_every_place_of_a_window_is_as_likely_and_windows_are_independent(n: int) -> None:
    schedule = AuditSchedule(n, seed=1)
    places = [next(i for i in range(n) if schedule.audits(w * n + i)) for w in range(4000)]
    assert chisquare([places.count(i) for i in range(n)]).pvalue > 1e-3
    pairs = Counter(zip(places[::2], places[1::2], strict=True))
    assert chisquare([pairs[i, j] for i in range(n) for j in range(n)]).pvalue > 1e-3


@pytest.mark.parametrize(("n", "steps_per_epoch"), [(5, 10), (10, 10), (4, 6), (20, 10)])
def test_no_place_of_an_epoch_is_left_out(n: int, steps_per_epoch: int) -> None:
    """A fixed stride would see at most steps_per_epoch / gcd places, here at most half of them, for ever."""
    schedule = AuditSchedule(n, seed=0)
    seen = Counter(step % steps_per_epoch for step in range(400 * steps_per_epoch) if schedule.audits(step))
    assert set(seen) == set(range(steps_per_epoch))
    assert chisquare(list(seen.values())).pvalue > 1e-3
    assert len({step % steps_per_epoch for step in range(0, 400 * steps_per_epoch, n)}) <= steps_per_epoch // 2


def test_the_seed_decides_and_no_random_state_is_touched() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    chosen = {seed: [AuditSchedule(5, seed).audits(step) for step in range(200)] for seed in (0, 1)}
    assert chosen[0] != chosen[1]
    assert chosen[0] == [AuditSchedule(5, 0).audits(step) for step in range(200)]
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


@pytest.mark.parametrize("n", [0, -1, 2.0, True, "5"])
def test_what_is_not_a_number_of_steps_is_refused(n: object) -> None:
    with pytest.raises(ValueError, match="whole number of steps"):
        AuditSchedule(n)  # type: ignore[arg-type]


def test_a_counter_goes_on_where_it_was_and_not_by_another_schedule() -> None:
    whole, first = StepCounter(AuditSchedule(3)), StepCounter(AuditSchedule(3))
    expected, found = [], []
    for _ in range(20):
        expected.append(whole.begin())
        whole.end()
    for step in range(20):
        if step in (7, 8, 13):
            resumed = StepCounter(AuditSchedule(3))
            resumed.load_state_dict(first.state_dict())
            first = resumed
        found.append(first.begin())
        first.end()
    assert found == expected
    for other in (AuditSchedule(4), AuditSchedule(3, seed=1)):
        with pytest.raises(UnsupportedTrainingError, match="do not add up"):
            StepCounter(other).load_state_dict(first.state_dict())
