"""Totals and bits of audits that rest at some steps, against a simulation and closed forms."""

from __future__ import annotations

import math

import pandas as pd
import pytest
import torch

from gradient_disclosure import DisclosureLedger, Exposure, Sampling
from gradient_disclosure.callbacks.audit_schedule import AuditSchedule
from gradient_disclosure.scores.bits import gaussian_bits, paper_bits, run_cap

RATE, STEPS, EVERY, RUNS = 0.25, 42, 4, 1500
SAMPLING = Sampling(RATE, 0.5)


def scores() -> torch.Tensor:
    """Batch-scope score at each step, the same in every run."""
    return torch.rand(STEPS, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 5


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    """One row a run, each with draws and a schedule of its own; the last window is not finished (42 = 10 · 4 + 2)."""
    x, generator = scores(), torch.Generator().manual_seed(1)
    drawn = torch.rand(RUNS, STEPS, generator=generator) < RATE
    audited = torch.tensor([[AuditSchedule(EVERY, s).audits(t) for t in range(STEPS)] for s in range(RUNS)])
    ledger = DisclosureLedger(Exposure(SAMPLING, poisson=True), every_n_steps=EVERY)
    ledger.rows(torch.arange(RUNS))
    for step in range(STEPS):
        ids = (drawn & audited)[:, step].nonzero().flatten()
        ledger.begin_step()
        ledger.record(ids, gnq=x[step].expand(len(ids)), squared_norms=torch.ones(len(ids)), step=step)
    return ledger.to_frame()


def test_totals_and_bits_are_unbiased_with_the_unseen_at_zero(frame: pd.DataFrame) -> None:
    x = scores()
    universe = x * SAMPLING.inclusion
    truth = {
        "gnq_total": RATE * float(x.sum()),  # the mean over draws of the sum over the drawn steps
        "squared_norm_total": RATE * STEPS,
        "bits_paper_uncapped": float(paper_bits(universe, SAMPLING).sum()),
        "bits_gaussian_uncapped": float(gaussian_bits(universe, SAMPLING).sum()),
    }
    assert frame["gnq_total"].isna().any()
    for column, expected in truth.items():
        estimates = frame[column].fillna(0.0)
        error = estimates.std() / math.sqrt(RUNS)
        assert abs(estimates.mean() - expected) < 4 * error
        assert error < 0.02 * expected  # the test would see a factor that is off by a tenth


def test_the_spread_is_not_understated(frame: pd.DataFrame) -> None:
    """Var = Σ F²(n/r − 1) − Σ over pairs of one window of 2 F_s F_t; the ledger leaves out the second part."""
    f = gaussian_bits(scores() * SAMPLING.inclusion, SAMPLING)
    first = float((f.square() * (EVERY / RATE - 1)).sum())
    pairs = sum(float(w.sum() ** 2 - w.square().sum()) for w in f.split(EVERY))
    assert frame["bits_gaussian_uncapped"].fillna(0).std() == pytest.approx(math.sqrt(first - pairs), rel=0.08)
    assert (frame["bits_gaussian_std"] ** 2).mean() == pytest.approx(first, rel=0.08)


def test_the_rate_a_draw_needs_no_further_factor(frame: pd.DataFrame) -> None:
    f = gaussian_bits(scores() * SAMPLING.inclusion, SAMPLING)
    assert frame["bits_gaussian_per_draw"].mean() == pytest.approx(float(f.sum()), rel=0.05)


def test_the_cap_is_that_of_all_steps(frame: pd.DataFrame) -> None:
    assert set(frame["bits_cap"]) == {run_cap(SAMPLING, STEPS, poisson=True)}
    assert run_cap(SAMPLING, STEPS // EVERY, poisson=True) < run_cap(SAMPLING, STEPS, poisson=True)


def test_the_lowest_coverage_counts_and_withholds_ceilings() -> None:
    ledger = DisclosureLedger(Exposure(SAMPLING, poisson=True))
    ledger.begin_step()
    ledger.record(torch.tensor([1]), gnq=torch.ones(1), squared_norms=torch.ones(1), step=0)
    assert ledger.to_frame()["attacker_accuracy_ceiling"].notna().all()
    for coverage in (0.5, 0.25, 1.0):
        ledger.cover(coverage)
    copy = DisclosureLedger()
    copy.load_state_dict(ledger.state_dict())
    for each in (ledger, copy):
        row = each.to_frame()
        assert row.attrs["coverage"] == 0.25
        assert row[[c for c in row.columns if "ceiling" in c]].isna().all(axis=None)
        assert row["bits_gaussian"].notna().all()
