from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradient_disclosure import DisclosureLedger, Exposure, Sampling
from gradient_disclosure.errors import ExampleIdError
from gradient_disclosure.scores.bits import gaussian_bits, paper_bits, run_cap


@settings(max_examples=50, deadline=None)
@given(st.lists(st.dictionaries(st.integers(-(10**12), 10**12), st.floats(0, 1e6), max_size=8), max_size=12))
def test_totals_equal_a_dictionary(steps: list[dict[int, float]]) -> None:
    ledger = DisclosureLedger()
    total: dict[int, float] = {}
    maximum: dict[int, float] = {}
    drawn: dict[int, int] = {}
    for number, step in enumerate(steps):
        ledger.begin_step()
        ids, scores = (
            torch.tensor(list(step), dtype=torch.int64),
            torch.tensor(list(step.values()), dtype=torch.float64),
        )
        ledger.record(ids, gnq=scores, squared_norms=2 * scores, step=number)
        for i, s in step.items():
            total[i] = total.get(i, 0.0) + s
            maximum[i] = max(maximum.get(i, 0.0), s)
            drawn[i] = drawn.get(i, 0) + 1
    frame = ledger.to_frame()
    order = sorted(total)
    assert frame["index"].tolist() == order
    assert frame["gnq_total"].tolist() == [total[i] for i in order]
    assert frame["gnq_max"].tolist() == [maximum[i] for i in order]
    assert frame["n_drawn"].tolist() == [drawn[i] for i in order]
    assert frame["squared_norm_max"].tolist() == [2 * maximum[i] for i in order]
    copy = DisclosureLedger()
    copy.load_state_dict(ledger.state_dict())
    assert copy.to_frame().equals(frame)
    assert copy.n_steps == len(steps)


def test_horvitz_thompson_is_unbiased() -> None:
    """The ledger's bits, averaged over many Poisson runs, are the sum over ALL steps of F(x), drawn or not."""
    sampling = Sampling(0.2, 0.5)
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, generator=generator, dtype=torch.float64) * 5  # batch-scope score at each of 40 steps
    universe = x * sampling.inclusion
    truth = {
        "paper": float(paper_bits(universe, sampling).sum()),
        "gaussian": float(gaussian_bits(universe, sampling).sum()),
    }
    runs = 2000
    ledger = DisclosureLedger(Exposure(sampling, poisson=True))
    for step in range(40):  # every id is one run with the same scores and its own draws
        drawn = (torch.rand(runs, generator=generator) < sampling.rate).nonzero().squeeze(1)
        ledger.begin_step()
        ledger.record(drawn, gnq=x[step].expand(len(drawn)), squared_norms=torch.ones(len(drawn)), step=step)
    frame = ledger.to_frame()
    assert len(frame) == runs
    for name in ("paper", "gaussian"):
        estimates = frame[f"bits_{name}_uncapped"]
        error = estimates.std() / math.sqrt(runs)
        assert abs(estimates.mean() - truth[name]) < 4 * error
    assert frame["bits_gaussian_std"].mean() == pytest.approx(frame["bits_gaussian_uncapped"].std(), rel=0.05)
    assert frame["bits_gaussian_per_draw"].mean() == pytest.approx(truth["gaussian"], rel=0.05)


def test_bits_are_capped_and_the_ceiling_follows() -> None:
    sampling = Sampling(0.5, 0.5)
    ledger = DisclosureLedger(Exposure(sampling, poisson=True))
    for step in range(3):
        ledger.begin_step()
        ledger.record(torch.tensor([0, 1]), gnq=torch.tensor([1e-6, 1e9]), squared_norms=torch.ones(2), step=step)
    frame = ledger.to_frame()
    cap = run_cap(sampling, 3, poisson=True)
    assert frame["bits_cap"].tolist() == [cap, cap]
    assert frame["at_cap"].tolist() == [False, True]
    assert frame["bits_gaussian"][1] == frame["bits_paper"][1] == cap
    assert frame["bits_paper_uncapped"][1] > 10 * cap
    assert frame["attacker_accuracy_ceiling"][0] == pytest.approx(0.5, abs=1e-3)
    assert frame["attacker_accuracy_ceiling"][1] > 0.9


def test_bits_do_not_depend_on_the_scope_that_is_stored() -> None:
    """The universe proxy is p times the batch's score at λp, and that product is the x of the bits."""
    sampling = Sampling(0.2, 0.4)
    batch_scores = torch.tensor([0.5, 20.0, 4e3], dtype=torch.float64)
    frames = {}
    for scope, gnq in (("batch", batch_scores), ("universe_proxy", batch_scores * 0.08)):
        ledger = DisclosureLedger(Exposure(sampling, poisson=True), scope=scope)
        ledger.begin_step()
        ledger.record(torch.tensor([0, 1, 2]), gnq=gnq, squared_norms=torch.ones(3), step=0)
        frames[scope] = ledger.to_frame()
        labels = {"scope": scope, "inverse": "damped", "every_n_steps": 1, "coverage": 1.0}
        assert frames[scope].attrs == {**labels, "across_ranks": "global", "ranks_apart": 1}
    for column in ("bits_paper_uncapped", "bits_gaussian_uncapped"):
        np.testing.assert_allclose(frames["universe_proxy"][column], frames["batch"][column], rtol=1e-12)
    expected = paper_bits(batch_scores * 0.08, sampling) / 0.2
    np.testing.assert_allclose(frames["batch"]["bits_paper_uncapped"], expected.numpy(), rtol=1e-12)


def test_a_pseudo_inverse_has_no_bits_and_says_what_it_saw(tmp_path: Path) -> None:
    ledger = DisclosureLedger(Exposure(Sampling(0.2), poisson=True), inverse="pinv")
    for step, ids in enumerate(([4, 2], [4])):
        ledger.begin_step()
        seen = torch.tensor([0.5, 1.0])[: len(ids)] / (step + 1)
        ledger.record(torch.tensor(ids), gnq=seen, squared_norms=10 * seen, step=step, inside_span=seen)
    assert not ledger.has_bits
    ledger.to_parquet(tmp_path / "ledger.parquet")
    frame = pd.read_parquet(tmp_path / "ledger.parquet").set_index("index")
    labels = {"scope": "batch", "inverse": "pinv", "every_n_steps": 1, "coverage": 1.0}
    assert frame.attrs == {**labels, "across_ranks": "global", "ranks_apart": 1}
    assert not [c for c in frame.columns if "bits" in c or "attacker" in c]
    assert frame["inside_span_mean"].to_dict() == {2: 1.0, 4: pytest.approx(0.375)}
    assert frame["gnq_max"].to_dict() == {2: 1.0, 4: 0.5}
    copy = DisclosureLedger()
    copy.load_state_dict(ledger.state_dict())
    assert (copy.scope, copy.inverse, copy.has_bits) == ("batch", "pinv", False)
    assert copy.to_frame().equals(ledger.to_frame())
    with pytest.raises(ValueError, match="unknown scope"):
        DisclosureLedger(scope="world")


def test_without_exposure_there_are_no_bits() -> None:
    ledger = DisclosureLedger()
    ledger.record(torch.tensor([1]), gnq=torch.ones(1), squared_norms=torch.ones(1), step=0)
    assert not [c for c in ledger.to_frame().columns if "bits" in c]


def test_ids_are_checked() -> None:
    ledger = DisclosureLedger(known_ids=5)
    one = {"gnq": torch.ones(2), "squared_norms": torch.ones(2)}
    with pytest.raises(ExampleIdError, match=r"step 7: ids \[3\] occur more than once"):
        ledger.record(torch.tensor([3, 3]), step=7, **one)
    with pytest.raises(ExampleIdError, match=r"ids \[5, -1\] are unknown"):
        ledger.record(torch.tensor([5, -1]), step=0, **one)
    with pytest.raises(ExampleIdError, match="integers"):
        ledger.record(torch.tensor([0.5, 1.0]), step=0, **one)
    assert len(ledger) == 0


def test_censored_examples_are_marked() -> None:
    ledger = DisclosureLedger()
    ledger.record(torch.tensor([4, 2]), gnq=torch.ones(2), squared_norms=torch.ones(2), step=0)
    ledger.censor(torch.tensor([2, 9]), step=3)
    assert ledger.is_censored(torch.tensor([4, 2, 9])).tolist() == [False, True, True]
    assert ledger.n_censored == 2
    frame = ledger.to_frame().set_index("index")
    assert frame.loc[2, "censored_at_step"] == 3
    assert frame.loc[2, "gnq_total"] == 1.0
    assert pd.isna(frame.loc[4, "censored_at_step"])


def test_parquet_is_written_whole(tmp_path: Path) -> None:
    ledger = DisclosureLedger(Exposure(Sampling(0.1), poisson=False))
    ledger.begin_step()
    ledger.record(torch.tensor([4, 2]), gnq=torch.tensor([0.5, 1.5]), squared_norms=torch.ones(2), step=0)
    ledger.to_parquet(tmp_path / "ledger.parquet")
    read = pd.read_parquet(tmp_path / "ledger.parquet")
    pd.testing.assert_frame_equal(read, ledger.to_frame())
    assert [p.name for p in tmp_path.iterdir()] == ["ledger.parquet"]
    assert np.isfinite(read["bits_gaussian"]).all()


def test_an_example_that_never_contributed_has_no_score() -> None:
    ledger = DisclosureLedger(Exposure(Sampling(0.1), poisson=True))
    for step in range(10):
        ledger.begin_step()
        ledger.record(torch.tensor([1]), gnq=torch.ones(1), squared_norms=torch.ones(1), step=step)
        if step == 4:
            ledger.record(torch.tensor([3]), gnq=torch.ones(1), squared_norms=torch.ones(1), step=step)
            ledger.censor(torch.tensor([2, 3]), step=5)
    frame = ledger.to_frame().set_index("index")
    assert frame.loc[2, ["gnq_total", "gnq_max", "squared_norm_total", "bits_gaussian"]].isna().all()
    # drawn once in the 5 steps it took part in, so its rate a draw is worth 5 steps, not 10
    one_draw = frame.loc[3, "bits_gaussian_uncapped"]
    assert frame.loc[3, "bits_gaussian_per_draw"] == pytest.approx(one_draw * 0.1 * 5)
    assert frame.loc[1, "bits_gaussian_per_draw"] == pytest.approx(one_draw * 0.1 * 10)
