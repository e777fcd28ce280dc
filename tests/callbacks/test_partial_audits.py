"""Audits of every n-th step or of some layers: what they see, what they say, what they leave alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from gradient_disclosure import GradientUniqueness
from gradient_disclosure.callbacks import gradient_uniqueness
from gradient_disclosure.callbacks.audit_schedule import AuditSchedule
from gradient_disclosure.defenses.gnq_censor import GnqCensor
from gradient_disclosure.errors import DisclosureError, UnsupportedTrainingError
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.gram.reference import leave_one_out_gnq, per_example_gradients
from gradient_disclosure.scores.bits import run_cap
from gradient_disclosure.scores.clipping import GaussianMechanism
from tests.toy import ToyModule, examples, fit, loader

BY_INDEX = {"example_ids": lambda batch: batch[2]}
CHEAP = [{"every_n_steps": 3}, {"layers": ["net.3.*"]}, {"every_n_steps": 2, "layers": ["*.bias"]}]


def weights(audit: Any = None, **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(3)
    module = ToyModule()
    fit(module, loader(shuffle=True), *([] if audit is None else [audit]), **options)
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("cheap", CHEAP)
def test_training_is_bitwise_untouched(cheap: dict[str, Any], accumulated: int) -> None:
    options = {"accumulate_grad_batches": accumulated}
    audited = weights(GradientUniqueness(**BY_INDEX, **cheap), **options)
    assert all(torch.equal(a, b) for a, b in zip(weights(**options), audited, strict=True))


class Probe(L.Callback):
    """At which steps hooks are on the module while it runs."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_before_backward(self, trainer: L.Trainer, pl_module: L.LightningModule, loss: torch.Tensor) -> None:
        if any(p._backward_hooks for p in pl_module.parameters()) or any(
            m._forward_hooks or m._forward_pre_hooks for m in pl_module.modules()
        ):
            self.steps.append(trainer.global_step)


def test_a_step_that_is_not_audited_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    class Counted(GradientGram):
        def __enter__(self) -> GradientGram:
            opened.append(self)
            return super().__enter__()

    monkeypatch.setattr(gradient_uniqueness, "GradientGram", Counted)
    audit, probe = GradientUniqueness(**BY_INDEX, every_n_steps=3), Probe()
    fit(ToyModule(), loader(), audit, probe, epochs=6)
    expected = [step for step in range(24) if AuditSchedule(3).audits(step)]
    assert probe.steps == expected
    assert len(opened) == len(expected) == 8
    assert audit.ledger.n_steps == 24


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


def test_an_audited_step_stands_for_n() -> None:
    """Totals from the steps of the schedule, by the literal definition; the cap is that of all steps."""
    module = Still()
    audit = GradientUniqueness(0.05, **BY_INDEX, every_n_steps=AuditSchedule(3, seed=5))
    fit(module, loader(dtype=torch.float64, batch_size=5), audit, epochs=5)
    total, drawn, norms = (torch.zeros(20, dtype=torch.float64) for _ in range(3))
    for step in range(20):
        if AuditSchedule(3, seed=5).audits(step):
            ids = torch.arange(20).split(5)[step % 4]
            g = module.gradients(ids)
            total[ids] += 3 * leave_one_out_gnq(g, 0.05)
            norms[ids] += 3 * g.square().sum(dim=1)
            drawn[ids] += 1
    frame = audit.ledger.to_frame()
    assert frame["index"].tolist() == drawn.nonzero().flatten().tolist()
    seen = drawn > 0
    for column, expected in (("gnq_total", total), ("squared_norm_total", norms), ("n_drawn", drawn)):
        torch.testing.assert_close(torch.tensor(frame[column].to_numpy()).double(), expected[seen], rtol=1e-8, atol=0)
    assert frame.attrs["every_n_steps"] == 3
    assert audit.ledger.exposure is not None
    assert frame["bits_cap"].tolist() == [run_cap(audit.ledger.exposure.sampling, 20, poisson=False)] * len(frame)


@pytest.mark.parametrize("layers", [["net.2.*"], ["*.bias"], ["net.0.weight", "net.2.bias"]])
def test_layers_score_their_own_gradients_and_never_more_than_all(layers: list[str]) -> None:
    module = Still()
    audit, full = GradientUniqueness(0.05, **BY_INDEX, layers=layers), GradientUniqueness(0.05, **BY_INDEX)
    fit(module, loader(dtype=torch.float64, batch_size=5), audit, epochs=1)
    fit(Still(), loader(dtype=torch.float64, batch_size=5), full, epochs=1)
    named = list(module.named_parameters())
    kept = torch.cat([torch.full((p.numel(),), name in matching(layers)) for name, p in named])
    expected = torch.cat([leave_one_out_gnq(module.gradients(i)[:, kept], 0.05) for i in torch.arange(20).split(5)])
    frame = audit.ledger.to_frame()
    torch.testing.assert_close(torch.tensor(frame["gnq_total"].to_numpy()), expected, rtol=1e-8, atol=0)
    assert (frame["gnq_total"] < full.ledger.to_frame()["gnq_total"]).all()
    assert (frame["bits_gaussian_uncapped"] < full.ledger.to_frame()["bits_gaussian_uncapped"]).all()
    assert frame.attrs["coverage"] == audit.coverage == pytest.approx(float(kept.double().mean()))
    assert frame["attacker_accuracy_ceiling"].isna().all()
    assert frame["bits_cap"].equals(full.ledger.to_frame()["bits_cap"])
    assert full.ledger.to_frame()["attacker_accuracy_ceiling"].notna().all()
    assert audit.extent is not None
    assert audit.extent.in_words() == (
        f"{int(kept.sum())} of {len(kept)} parameters (coverage {100 * float(kept.double().mean()):.1f} %)",
    )


def matching(layers: list[str]) -> set[str]:
    names = {"net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"}
    by_pattern = {"net.2.*": {"net.2.weight", "net.2.bias"}, "*.bias": {"net.0.bias", "net.2.bias"}}
    found: set[str] = set().union(*(by_pattern.get(pattern, {pattern}) for pattern in layers))
    assert found <= names
    return found


def test_accumulated_batches_are_audited_whole_or_not_at_all() -> None:
    audit = GradientUniqueness(**BY_INDEX, every_n_steps=2)
    module = ToyModule(lambda p: torch.optim.SGD(p, lr=0.0), nn.Linear(6, 3))
    fit(module, loader(batch_size=5), audit, epochs=3, accumulate_grad_batches=2)
    audited = sum(AuditSchedule(2).audits(step) for step in range(6))
    assert audit.ledger.n_steps == 6
    assert int(audit.ledger.totals("n_drawn").sum()) == 10 * audited == 30


class Stopping(L.Callback):
    def __init__(self, at: int, path: Path) -> None:
        self.at, self.path = at, path

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *rest: Any) -> None:
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("at", [4, 8])
def test_a_resumed_audit_is_bitwise_that_of_one_that_was_not_interrupted(tmp_path: Path, at: int) -> None:
    def begun() -> tuple[ToyModule, GradientUniqueness]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        return ToyModule(net=net), GradientUniqueness(**BY_INDEX, every_n_steps=3, layers=["net.2.*"])

    module, whole = begun()
    fit(module, loader(), whole, epochs=5)
    module, first = begun()
    fit(module, loader(), first, Stopping(at, tmp_path / "some.ckpt"), epochs=5)
    assert first.ledger.n_steps == at
    module, resumed = begun()
    trainer = L.Trainer(
        max_epochs=5, accelerator="cpu", callbacks=[resumed], enable_model_summary=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(module, loader(), ckpt_path=tmp_path / "some.ckpt", weights_only=True)
    assert resumed.ledger.n_steps == 20
    assert resumed.ledger.to_frame().equals(whole.ledger.to_frame())
    assert resumed.ledger.to_frame().attrs == whole.ledger.to_frame().attrs
    assert resumed.extent == whole.extent
    assert resumed.statistics == whole.statistics


def test_a_ledger_is_not_continued_at_another_extent() -> None:
    state = GradientUniqueness(every_n_steps=3, layers=["net.2.*"]).state_dict()
    for other in (
        {"every_n_steps": 2, "layers": ["net.2.*"]},
        {"every_n_steps": 3},
        {"every_n_steps": 3, "layers": ["*"]},
    ):
        with pytest.raises(UnsupportedTrainingError, match="do not add up"):
            GradientUniqueness(**other).load_state_dict(state)
    with pytest.raises(UnsupportedTrainingError, match="do not add up"):
        GradientUniqueness(exclude=["net.0.*"]).load_state_dict(GradientUniqueness().state_dict())
    GradientUniqueness(every_n_steps=3, layers=["net.2.*"]).load_state_dict(state)


def test_a_second_training_goes_on_in_the_schedule() -> None:
    audit = GradientUniqueness(**BY_INDEX, every_n_steps=4)
    fit(ToyModule(), loader(batch_size=5), audit, epochs=1)
    fit(ToyModule(), loader(batch_size=5), audit, epochs=1)
    audited = [step % 4 for step in range(8) if AuditSchedule(4).audits(step)]
    assert audit.ledger.to_frame()["n_drawn"].sum() == 5 * len(audited)
    assert set(audit.ledger.to_frame()["index"] // 5) == set(audited)


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(UnsupportedTrainingError, match=r"censor must see every step.*every_n_steps=2"):
        GradientUniqueness(**BY_INDEX, censor=GnqCensor(), every_n_steps=2)
    with pytest.raises(ValueError, match=r"censor cannot drop.*layers"):
        GradientUniqueness(**BY_INDEX, censor=GnqCensor(), layers=["net.2.*"])
    mechanism = GaussianMechanism(1.0, 1.0)
    for options in ({"layers": ["net.2.*"]}, {"exclude": ["net.2.*"]}):
        with pytest.raises(UnsupportedTrainingError, match="clips by the norm of the gradient of all parameters"):
            GradientUniqueness(**BY_INDEX, mechanism=mechanism, **options)
    GradientUniqueness(**BY_INDEX, mechanism=mechanism, every_n_steps=2)
    with pytest.raises(ValueError, match="give one of the two"):
        GradientUniqueness(layers=["net.2.*"], exclude=["net.0.*"])
    with pytest.raises(DisclosureError, match="matches no parameter"):
        fit(ToyModule(), loader(), GradientUniqueness(layers=["nett.*"]))


def test_logs_say_what_was_audited_at_every_step_they_are_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lightning writes at every 4th step, few of which are audited: the last audited one since is logged there."""
    audit = GradientUniqueness(**BY_INDEX, every_n_steps=3, layers=["net.3.*"])
    with caplog.at_level(logging.INFO):
        trainer = fit(ToyModule(), loader(), audit, epochs=6, logger=CSVLogger(tmp_path), log_every_n_steps=4)
    assert float(trainer.logged_metrics["disclosure/every_n_steps"]) == 3
    assert float(trainer.logged_metrics["disclosure/coverage"]) == pytest.approx(27 / 83)
    written = (tmp_path / "lightning_logs" / "version_0" / "metrics.csv").read_text().splitlines()
    seen = {step // 4 for step in range(24) if AuditSchedule(3).audits(step)}
    assert len(written) == 1 + len(seen) > 4
    said = [record.message for record in caplog.records if "every 3rd step" in record.message]
    assert len(said) == 1
    assert "27 of 83 parameters (coverage 32.5 %)" in said[0]
