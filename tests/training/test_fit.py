from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback

from gradient_disclosure.defenses.budget import MedianMultiple
from gradient_disclosure.defenses.censors import GnqCensorDefense, RandomCensorDefense
from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.defenses.gnq_censor import CensorRule
from gradient_disclosure.defenses.undefended import Undefended
from gradient_disclosure.training import fit
from gradient_disclosure.training.fit import TrainedModel, Watch, train
from gradient_disclosure.training.recipe import shadow_memberships, target_members
from tests.training.recipes import recipe

RULE = CensorRule(threshold=MedianMultiple(2.0, minimum_drawn=8), max_fraction=1.0)
DEFENSES = {
    "none": Undefended(),
    "gnq_censor": GnqCensorDefense(RULE),
    "random_censor": RandomCensorDefense(RULE),
    "dp_sgd": DPSGD(clip_norm=1.0, noise_multiplier=0.8),
}
MEMBERS = target_members(40, 0.5, seed=0)
WATCH = Watch(audited=True, moments={"init": 0, "early": 3})


class KilledError(Exception):
    """Stands for kill -9: nothing after it runs."""


class Killer(Callback):
    """Kills before a step; with no step it only notes which steps are taken."""

    def __init__(self, step: int = -1) -> None:
        self.step = step
        self.seen: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.seen.append(trainer.global_step)
        if trainer.global_step == self.step:
            raise KilledError


def assert_same(a: TrainedModel, b: TrainedModel) -> None:
    for (name, x), y in zip(a.module.state_dict().items(), b.module.state_dict().values(), strict=True):
        assert torch.equal(x, y), name
    assert a.ledger is not None
    assert b.ledger is not None
    assert a.ledger.to_frame().equals(b.ledger.to_frame())
    assert dict(a.defense) == dict(b.defense)
    assert dict(a.audit) == dict(b.audit)
    assert a.steps == b.steps
    assert a.snapshots.keys() == b.snapshots.keys() == {"init", "early"}
    for moment, weights in a.snapshots.items():
        assert all(torch.equal(x, b.snapshots[moment][k]) for k, x in weights.items())


@pytest.mark.parametrize("defense", DEFENSES)
def test_killed_and_resumed_is_bitwise_uninterrupted(
    defense: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 members in batches of 8 make 3 steps an epoch: kills before the first checkpoint, mid-epoch, at its ends."""
    wanted = recipe(defense=DEFENSES[defense])
    straight = train(wanted, MEMBERS, 5, tmp_path / "straight", WATCH)
    assert straight.steps == 9
    build = fit._trainer
    for kill_at in (1, 2, 3, 5, 6, 8):
        folder = tmp_path / f"killed at {kill_at}"
        monkeypatch.setattr(fit, "_trainer", lambda r, f, w, c, k=kill_at: build(r, f, w, [*c, Killer(k)]))
        with pytest.raises(KilledError):
            train(wanted, MEMBERS, 5, folder, WATCH)
        witness = Killer()
        monkeypatch.setattr(fit, "_trainer", lambda r, f, w, c, k=witness: build(r, f, w, [*c, k]))
        assert_same(train(wanted, MEMBERS, 5, folder, WATCH), straight)
        assert witness.seen[0] == kill_at - kill_at % 2  # went on from the checkpoint of every second step


def test_killed_after_the_last_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint holds the whole training and nothing is left to do but to read it back."""
    wanted = recipe(checkpoint_every_n_steps=3)
    straight = train(wanted, MEMBERS, 5, tmp_path / "straight", WATCH)
    with monkeypatch.context() as patched:
        patched.setattr(fit, "save_state", lambda *_: (_ for _ in ()).throw(KilledError))
        with pytest.raises(KilledError):
            train(wanted, MEMBERS, 5, tmp_path / "killed", WATCH)
    assert_same(train(wanted, MEMBERS, 5, tmp_path / "killed", WATCH), straight)
    assert straight.audit["coverage"] == 1.0


def test_killed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = train(recipe(), MEMBERS, 5, tmp_path / "straight", WATCH)
    build = fit._trainer
    for kill_at in (3, 5, 7):
        monkeypatch.setattr(fit, "_trainer", lambda r, f, w, c, k=kill_at: build(r, f, w, [*c, Killer(k)]))
        with pytest.raises(KilledError):
            train(recipe(), MEMBERS, 5, tmp_path / "killed", WATCH)
    monkeypatch.setattr(fit, "_trainer", build)
    assert_same(train(recipe(), MEMBERS, 5, tmp_path / "killed", WATCH), straight)


def test_a_finished_training_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = recipe(defense=DEFENSES["gnq_censor"])
    first = train(wanted, MEMBERS, 5, tmp_path, WATCH)
    monkeypatch.setattr(fit, "_trainer", None)  # a second training would fail
    second = train(wanted, MEMBERS, 5, tmp_path, WATCH)
    assert_same(first, second)
    assert second.seconds == first.seconds
    assert not (tmp_path / fit.CHECKPOINT).exists()


def test_the_audit_changes_nothing(tmp_path: Path) -> None:
    for name in ("none", "dp_sgd"):
        wanted = recipe(defense=DEFENSES[name])
        audited = train(wanted, MEMBERS, 5, tmp_path / name / "audited", WATCH)
        plain = train(wanted, MEMBERS, 5, tmp_path / name / "plain")
        assert plain.ledger is None
        for x, y in zip(audited.module.parameters(), plain.module.parameters(), strict=True):
            assert torch.equal(x, y)


def test_dp_sgd_is_audited_on_its_own_scale(tmp_path: Path) -> None:
    """Clipped gradients and the real noise: no score can pass (‖g̃‖/σC)² ≤ 1/σ²·(1 − p)."""
    trained = train(recipe(defense=DEFENSES["dp_sgd"]), MEMBERS, 5, tmp_path, WATCH)
    assert trained.ledger is not None
    assert trained.ledger.exposure is not None
    assert trained.ledger.exposure.poisson
    p = trained.ledger.exposure.sampling.inclusion
    assert trained.audit["damping"] == pytest.approx(0.8**2 / (1 - p))
    frame = trained.ledger.to_frame()
    assert (frame["gnq_max"] <= (1 - p) / 0.8**2 * (1 + 1e-6)).all()
    assert (frame["squared_norm_max"] <= 1 + 1e-6).all()


def test_censored_examples_stop_adding(tmp_path: Path) -> None:
    trained = train(recipe(defense=DEFENSES["gnq_censor"]), MEMBERS, 5, tmp_path, WATCH)
    assert trained.ledger is not None
    frame = trained.ledger.to_frame()
    censored = frame[frame["censored_at_step"].notna()]
    assert 0 < len(censored) < 20
    assert (censored["n_drawn"] < 3).all()
    assert (frame[frame["censored_at_step"].isna()]["n_drawn"] == 3).all()
    assert trained.defense["censored"] == len(censored)


def test_other_seed_other_training(tmp_path: Path) -> None:
    a, b = (train(recipe(), MEMBERS, seed, tmp_path / str(seed)) for seed in (1, 2))
    assert not torch.equal(next(a.module.parameters()), next(b.module.parameters()))


def test_memberships_are_balanced() -> None:
    masks = shadow_memberships(6, 11, seed=3)
    assert masks.sum(dim=0).tolist() == [3] * 11
    assert sorted(masks.sum(dim=1).tolist()) == [5, 5, 5, 6, 6, 6]
    assert not torch.equal(masks[0], masks[2])
    with pytest.raises(ValueError, match="even number"):
        shadow_memberships(3, 10, seed=0)
    members = target_members(11, 0.4, seed=0)
    assert members.tolist() == sorted(set(members.tolist()))
    assert len(members) == 4
