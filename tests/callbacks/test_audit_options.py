"""Scope and inverse of the audit: what is stored, what the bits are made of, what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader

from gradient_disclosure import GradientUniqueness, Sampling
from gradient_disclosure.defenses.budget import STATISTICS, AbsoluteThreshold
from gradient_disclosure.defenses.gnq_censor import CensorRule, GnqCensor
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.gram.reference import leave_one_out_gnq, per_example_gradients
from gradient_disclosure.scores.bits import gaussian_bits
from gradient_disclosure.scores.clipping import GaussianMechanism
from tests.toy import ToyModule, examples, fit, loader

BY_INDEX = {"example_ids": lambda batch: batch[2]}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Has no length."""

    def __iter__(self) -> Any:
        return iter(zip(*examples(), strict=True))


class Still(ToyModule):
    """Does not move, so that every epoch sees the same gradients."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
        super().__init__(lambda p: torch.optim.SGD(p, lr=0.0), net)

    def gradients(self, ids: torch.Tensor) -> torch.Tensor:
        x, y, _ = examples(dtype=torch.float64)
        return per_example_gradients(
            self.net, lambda m, i: F.cross_entropy(m(x[ids[i] : ids[i] + 1]), y[ids[i] : ids[i] + 1]), len(ids)
        )


def test_the_universe_proxy_and_its_bits_equal_a_hand_written_audit() -> None:
    """p · g_jᵀ(Σ_{k≠j} g_k g_kᵀ + λpI)⁻¹g_j, whose bits need no further factor."""
    module = Still()
    audit = GradientUniqueness(0.05, **BY_INDEX, scope="universe_proxy", membership_prior=0.25)
    fit(module, loader(dtype=torch.float64, batch_size=5), audit, epochs=1)
    sampling = Sampling(5 / 20, 0.25)
    p = 0.0625
    expected = torch.cat([p * leave_one_out_gnq(module.gradients(ids), 0.05 * p) for ids in torch.arange(20).split(5)])
    frame = audit.ledger.to_frame()
    torch.testing.assert_close(torch.tensor(frame["gnq_total"].to_numpy()), expected, rtol=1e-8, atol=0)
    bits = gaussian_bits(expected, sampling) / sampling.rate
    torch.testing.assert_close(torch.tensor(frame["bits_gaussian_uncapped"].to_numpy()), bits, rtol=1e-6, atol=0)
    assert audit.statistics.means()["damping"] == pytest.approx(0.05)
    same = GradientUniqueness(0.05 * p, **BY_INDEX, membership_prior=0.25)
    fit(Still(), loader(dtype=torch.float64, batch_size=5), same, epochs=1)
    for column in ("bits_gaussian", "bits_paper_uncapped", "attacker_accuracy_ceiling"):
        assert same.ledger.to_frame()[column].to_list() == pytest.approx(frame[column].to_list(), rel=1e-9)


def test_by_pseudo_inverse_there_are_no_bits_and_it_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    module, audit = Still(), GradientUniqueness(**BY_INDEX, inverse="pinv")
    with caplog.at_level(logging.WARNING):
        trainer = fit(
            module,
            loader(dtype=torch.float64),
            audit,
            epochs=1,
            logger=CSVLogger(tmp_path),
            log_every_n_steps=1,
        )
    assert any("inverse='pinv'" in r.message and "no bits" in r.message for r in caplog.records)
    expected, inside = [], []
    for ids in torch.arange(20).split(6):
        g = module.gradients(ids)
        for j in range(len(ids)):
            others = torch.cat([g[:j], g[j + 1 :]])
            coefficients = torch.linalg.lstsq(others.T, g[j]).solution
            expected.append(float(coefficients.square().sum()))
            inside.append(1 - float((g[j] - others.T @ coefficients).square().sum() / g[j].square().sum()))
    frame = audit.ledger.to_frame()
    assert frame["gnq_total"].to_list() == pytest.approx(expected, rel=1e-8)
    assert frame["inside_span_mean"].to_list() == pytest.approx(inside, rel=1e-8)
    assert not [c for c in frame.columns if "bits" in c]
    means = [sum(inside[i : i + 6]) / len(inside[i : i + 6]) for i in range(0, 20, 6)]
    assert audit.statistics.means()["inside_span"] == pytest.approx(sum(means) / 4)
    assert float(trainer.logged_metrics["disclosure/inside_span_min"]) == pytest.approx(min(inside[18:]), rel=1e-5)


def test_options_that_contradict_each_other_are_refused() -> None:
    mechanism = GaussianMechanism(1.0, 1.0)
    with pytest.raises(UnsupportedTrainingError, match="scope='universe_proxy' does not apply to DP-SGD"):
        GradientUniqueness(**BY_INDEX, mechanism=mechanism, scope="universe_proxy")
    with pytest.raises(UnsupportedTrainingError, match="inverse='pinv' does not apply to DP-SGD"):
        GradientUniqueness(**BY_INDEX, mechanism=mechanism, inverse="pinv")
    for statistic in STATISTICS:
        censor = GnqCensor(CensorRule(statistic))
        with pytest.raises(UnsupportedTrainingError, match=rf"censor by '{statistic}' cannot use inverse='pinv'"):
            GradientUniqueness(**BY_INDEX, censor=censor, inverse="pinv")
        GradientUniqueness(**BY_INDEX, censor=censor, scope="universe_proxy")
    with pytest.raises(ValueError, match="unknown scope"):
        GradientUniqueness(scope="world")
    stream = DataLoader(Stream(), batch_size=6)
    with pytest.raises(UnsupportedTrainingError, match="needs to know how often an example is drawn"):
        fit(ToyModule(), stream, GradientUniqueness(**BY_INDEX, scope="universe_proxy"))


def test_a_ledger_is_not_continued_in_other_units() -> None:
    state = GradientUniqueness(scope="universe_proxy").state_dict()
    with pytest.raises(UnsupportedTrainingError, match="scope='universe_proxy', and this audit is set to 'batch'"):
        GradientUniqueness().load_state_dict(state)
    GradientUniqueness(scope="universe_proxy").load_state_dict(state)


def budgeted(damping: float, scope: str, statistic: str, budget: float) -> list[Any]:
    """When each example was censored, at a rate of 1/4 and a prior of 1/2."""
    audit = GradientUniqueness(
        damping,
        **BY_INDEX,
        scope=scope,
        censor=GnqCensor(CensorRule(statistic, AbsoluteThreshold(budget), max_fraction=1.0)),
    )
    fit(Still(), loader(dtype=torch.float64, batch_size=5), audit, epochs=3)
    return audit.ledger.to_frame()["censored_at_step"].fillna(-1).to_list()


@pytest.mark.parametrize(("statistic", "budget"), [("accumulated_bits", 0.4), ("accumulated_gnq", 6.0)])
def test_a_censor_keeps_its_budget_in_either_scope(statistic: str, budget: float) -> None:
    """The same λ and the same budget, in units of the batch and of the universe: the same examples at the same step."""
    p = 0.125
    in_universe_units = budget * p if statistic == "accumulated_gnq" else budget
    plain = budgeted(8.0 * p, "batch", statistic, budget)
    assert 0 < plain.count(-1) < 20
    assert budgeted(8.0, "universe_proxy", statistic, in_universe_units) == plain
