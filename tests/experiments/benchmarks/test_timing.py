from __future__ import annotations

import itertools
import time
from collections import Counter

import numpy as np
import pytest

from experiments.benchmarks.timing import Spread, StepLimitError, interleaved, step_limit, takes_part


def test_every_round_has_each_way_once_in_changing_order() -> None:
    called: list[str] = []

    def timer(name: str) -> float:
        called.append(name)
        return float(len(called))

    quotas = {"plain": 12, "fast": 12, "slow": 3}
    timers = {name: (lambda name=name: timer(name)) for name in quotas}
    rounds = interleaved(timers, quotas)
    assert len(rounds) == 12
    assert all({"plain", "fast"} <= set(r) for r in rounds)
    assert Counter(called) == quotas
    positions = [number for number, r in enumerate(rounds) if "slow" in r]
    assert min(np.diff(positions)) >= 3
    assert len({tuple(r) for r in rounds}) > 1
    # Rounds follow one another: what a round measured lies between those of its neighbors.
    assert all(max(a.values()) < min(b.values()) for a, b in itertools.pairwise(rounds))


@pytest.mark.parametrize("rounds", [2, 3, 10, 40])
def test_quotas_are_kept(rounds: int) -> None:
    for quota in range(1, rounds + 1):
        assert sum(takes_part(number, quota, rounds) for number in range(rounds)) == quota


def test_spread() -> None:
    values = np.random.default_rng(0).normal(5.0, 1.0, 400)
    spread = Spread.of(values.tolist())
    assert spread.median == np.median(values)
    assert spread.interval[0] < 5.0 < spread.interval[1]
    # The standard error of a median of normal numbers is 1.2533 σ / √n.
    width = spread.interval[1] - spread.interval[0]
    assert width == pytest.approx(2 * 1.96 * 1.2533 / 20, rel=0.3)
    assert spread.quartiles[0] == pytest.approx(5 - 0.6745, abs=0.2)


def test_what_takes_too_long_is_broken_off() -> None:
    with pytest.raises(StepLimitError, match=r"longer than 0\.05 s"), step_limit(0.05):
        for _ in range(1000):
            time.sleep(0.005)
    time.sleep(0.06)  # no alarm remains
    with step_limit(1.0):
        pass
