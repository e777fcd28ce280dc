from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from experiments.cheaper_audits.agreement import Pairs, over_seeds, spearman, top_overlap


def pairs(seed: int, noise: float, n: int = 200) -> Pairs:
    rng = np.random.default_rng(seed)
    full = rng.normal(size=n)
    return Pairs(full, full + noise * rng.normal(size=n))


@pytest.mark.parametrize("noise", [0.0, 0.5, 3.0])
def test_the_correlation_is_scipys_ties_included(noise: float) -> None:
    each = pairs(1, noise)
    tied = Pairs(np.round(each.full), np.round(each.other))
    for one in (each, tied):
        assert spearman(one) == pytest.approx(spearmanr(one.full, one.other).statistic, abs=1e-12)


def test_the_interval_covers_the_mean_of_the_seeds_and_narrows_with_them() -> None:
    few, many = over_seeds([pairs(0, 1.0)]), over_seeds([pairs(seed, 1.0) for seed in range(9)])
    assert few["spearman_low"] < few["spearman"] < few["spearman_high"]
    assert many["spearman"] == pytest.approx(np.mean(many["spearman_per_seed"]), abs=1e-5)
    widths = [found["spearman_high"] - found["spearman_low"] for found in (few, many)]
    assert 2.0 < widths[0] / widths[1] < 4.5  # nine seeds: about a third
    truth = 6 / np.pi * np.arcsin(np.sqrt(0.5) / 2)  # of a normal pair with correlation √½
    assert many["spearman_low"] - 0.02 < truth < many["spearman_high"] + 0.02


def test_members_without_a_score_are_left_out_and_counted() -> None:
    each = pairs(0, 0.0)
    other = each.other.copy()
    other[:50] = np.nan
    found = over_seeds([Pairs(each.full, other)])
    assert (found["spearman"], found["top_10pct_overlap"], found["unscored_fraction"]) == (1.0, 1.0, 0.25)


def test_the_overlap_is_counted_at_the_top() -> None:
    full = np.arange(20.0)
    other = full.copy()
    other[[18, 0]] = other[[0, 18]]
    assert top_overlap(Pairs(full, other), 0.1) == 0.5
    assert top_overlap(Pairs(full, -full), 0.1) == 0.0
