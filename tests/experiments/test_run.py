from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import run as run_command
from experiments.run import job
from gradient_disclosure.errors import (
    DisclosureError,
    IncompatibleModelError,
    MissingDataError,
    RunFolderError,
    UnsupportedTrainingError,
)
from tests.experiments.composing import SHARED, composed
from tests.reporting.wandb_file import read_history

SMALL = (
    "preset=smoke",
    "logger=none",
    "report.progress=false",
    "data.loader.pool_size=120",
    "data.loader.test_size=40",
)

COVERING = [
    ("none", "small_cnn", "digits"),
    ("none", "mlp", "adult"),
    ("gnq_censor", "small_cnn", "mnist"),
    ("gnq_censor", "mlp", "digits"),
    ("random_censor", "lenet", "digits"),
    ("random_censor", "mlp", "adult"),
    ("dp_sgd", "small_cnn", "digits"),
    ("dp_sgd", "mlp", "mnist"),
    ("dp_sgd", "resnet18", "digits"),
    ("none", "resnet18", "digits"),
    ("gnq_censor", "resnet18", "digits"),
]


def overrides(defense: str, model: str, data: str, *more: str) -> list[str]:
    root = {"mnist": SHARED, "adult": SHARED / "tabular" / "adult"}.get(data)
    if root is not None and not root.exists():
        pytest.skip(f"the real {data} files are not at {root}")
    chosen = [f"model={model}", f"data={data}", *SMALL, *more]
    if root is not None:
        chosen.append(f"data.root={root}")
    if model == "resnet18":  # 11 million parameters: as few examples and models as make a run
        chosen += ["data.loader.pool_size=16", "data.batch_size=4", "training.epochs=1", "attack=membership_only"]
        chosen += ["attack.membership.shadow_models=4", "model.network.groups=8"]
    return chosen + ([f"+defense={defense}"] if defense != "none" else [])


@pytest.mark.parametrize(("defense", "model", "data"), COVERING)
def test_a_covering_set_of_combinations_runs(defense: str, model: str, data: str, tmp_path: Path) -> None:
    results = job(composed(*overrides(defense, model, data)), tmp_path)
    assert results["defense/name"] == defense
    assert 0 <= results["utility/test_accuracy"] <= 1
    assert results["disclosure/coverage"] == 1.0
    assert results["disclosure/gnq_total_mean"] > 0
    assert results["attack/lira_online/auc_low"] <= results["attack/lira_online/auc"]
    assert results["cost/audit_overhead"] > 0
    assert (defense == "dp_sgd") == ("defense/epsilon" in results)
    assert ("censor" in defense) == ("defense/censored_fraction" in results)
    images = data != "adult" and model != "resnet18"
    assert ("attack/dlg/init/ssim" in results) == images
    ledger = pd.read_parquet(tmp_path / "ledger.parquet")
    pool = 16 if model == "resnet18" else 120
    assert len(ledger) == pool
    assert ledger["member"].sum() == pool // 2
    assert ledger.loc[~ledger["member"], "gnq_total"].isna().all()
    assert "<html" in (tmp_path / "report.html").read_text()
    assert list((tmp_path / "figures").glob("*.png"))
    assert not list(tmp_path.rglob("*.partial"))


def comparable(results: dict[str, Any]) -> dict[str, Any]:
    """Results without times."""
    return {k: v for k, v in results.items() if not k.startswith("cost/") and k != "meta/started"}


def test_a_finished_run_is_read_back_and_fresh_starts_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = overrides("gnq_censor", "mlp", "digits", "attack=membership_only")
    first = job(composed(*wanted), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(run_command, "run", None)  # a second run would fail
        assert job(composed(*wanted), tmp_path) == first
    again = job(composed(*wanted, "fresh=true"), tmp_path)
    assert comparable(again) == comparable(first)
    assert again["cost/total_seconds"] != first["cost/total_seconds"]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    wanted = overrides("none", "mlp", "digits", "attack=membership_only")
    job(composed(*wanted), tmp_path)
    with pytest.raises(RunFolderError, match=r"other settings \(seed: 0 there, 1 here\).*fresh=true"):
        job(composed(*wanted, "seed=1"), tmp_path)


def test_an_unusable_folder_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    """A file where a folder is needed stands for a read-only disk: root, as in CI, may write to read-only folders."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(RunFolderError, match=r"Cannot create the folder .*file/run"):
        job(composed(*SMALL), tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "in the way"


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    wanted = overrides("none", "mlp", "digits", "attack=membership_only")
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(RunFolderError, match="No space left on device"):
            job(composed(*wanted), tmp_path)
    assert not list(tmp_path.rglob("*.partial"))
    assert not (tmp_path / "results.json").exists()


def test_missing_data_and_wrong_models_are_clear_errors(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"(?s)adult\.data.*data\.download=true"):
        job(composed("data=adult", "model=mlp", f"data.root={tmp_path}", *SMALL), tmp_path / "a")
    with pytest.raises(IncompatibleModelError, match="mlp"):
        job(composed(*overrides("none", "small_cnn", "adult")), tmp_path / "b")


def test_the_same_run_of_a_sweep_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = overrides("gnq_censor", "mlp", "digits", "attack=membership_only")
    first = job(composed(*wanted, "epsilon=1"), tmp_path / "epsilon=1")
    monkeypatch.setattr(run_command, "run", None)
    second = job(composed(*wanted, "epsilon=8"), tmp_path / "epsilon=8", in_sweep=True)
    assert second.pop("meta/copied_from") == "epsilon=1"
    assert second == first
    assert first["setting/epsilon"] is None
    assert json.loads((tmp_path / "epsilon=8" / "run.json").read_text())["fingerprint"] == first["meta/fingerprint"]
    assert (tmp_path / "epsilon=8" / "report.html").read_text() == (tmp_path / "epsilon=1" / "report.html").read_text()


def test_only_a_sweep_copies_and_fresh_never_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = overrides("none", "mlp", "digits", "attack=membership_only", "attack.membership.shadow_models=0")
    first = job(composed(*wanted), tmp_path / "a")
    assert not any(key.startswith("attack/lira") for key in first)
    assert first["disclosure/spearman_gnq_total_lira_online"] is None
    assert "meta/copied_from" not in job(composed(*wanted), tmp_path / "b")
    assert "meta/copied_from" not in job(composed(*wanted, "fresh=true"), tmp_path / "c", in_sweep=True)
    assert "meta/copied_from" in job(composed(*wanted), tmp_path / "d", in_sweep=True)


def test_fresh_removes_nothing_that_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match=r"thesis\.tex.*not removed"):
        job(composed(*SMALL, "fresh=true"), tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("attack.membership.shadow_models=2", "even number, at least 4"),
        ("attack.membership.shadow_models=5", "even number, at least 4"),
        ("audit.membership_prior=0.25", "halves of the pool"),
        ("audit.damping.value=0", "damping must be positive"),
        ("audit.scope=dataset", "unknown scope 'dataset'; known: batch, universe_proxy"),
        ("audit.inverse=inv", "unknown inverse 'inv'; known: damped, pinv"),
        ("+defense=dp_sgd audit.scope=universe_proxy", "scope='universe_proxy' does not apply to DP-SGD"),
        ("+defense=gnq_censor audit.inverse=pinv", "censor by 'accumulated_gnq' cannot use inverse='pinv'"),
        ("attack.reconstruction.lpips_weights=/nowhere.safetensors", "is not a file"),
        ("+defense=dp_sgd epsilon=-1", "epsilon must be positive"),
    ],
)
def test_settings_that_would_fail_late_are_refused_early(change: str, words: str, tmp_path: Path) -> None:
    with pytest.raises((DisclosureError, ValueError), match=words):
        job(composed(*SMALL, *change.split()), tmp_path)
    assert not (tmp_path / "target").exists()


def test_clipping_without_noise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTrainingError, match="noise_multiplier is 0"):
        job(composed(*SMALL, "+defense=dp_sgd", "defense.noise_multiplier=0"), tmp_path)


def test_dp_sgd_says_what_its_figures_are(tmp_path: Path) -> None:
    results = job(composed(*overrides("dp_sgd", "mlp", "digits", "attack=membership_only")), tmp_path)
    assert results["setting/damping"] is None
    p = results["defense/sampling_rate"] / 2
    assert results["disclosure/damping"] == pytest.approx(1.0 / (1 - p))
    assert 0 < results["disclosure/known_others_mu_squared_mean"] <= 1.0 + 1e-6
    ledger = pd.read_parquet(tmp_path / "ledger.parquet").query("n_drawn > 0")
    expected = (ledger["squared_norm_total"] / ledger["n_drawn"]).mean()
    assert results["disclosure/known_others_mu_squared_mean"] == pytest.approx(expected)


def test_results_and_report_say_what_the_scores_are(tmp_path: Path) -> None:
    wanted = overrides("none", "mlp", "digits", "attack=membership_only")
    plain = job(composed(*wanted), tmp_path / "plain")
    assert (plain["disclosure/scope"], plain["disclosure/inverse"]) == ("batch", "damped")
    assert plain["disclosure/inside_span_mean"] is None

    proxy = job(composed(*wanted, "audit.scope=universe_proxy"), tmp_path / "proxy")
    assert (proxy["disclosure/scope"], proxy["setting/scope"]) == ("universe_proxy", "universe_proxy")
    assert proxy["disclosure/damping"] == pytest.approx(0.01)
    assert 0 < proxy["disclosure/gnq_total_mean"] < plain["disclosure/gnq_total_mean"]
    assert proxy["disclosure/bits_gaussian_mean"] > 0
    assert "overestimates on average" in (tmp_path / "proxy" / "report.html").read_text()
    assert pd.read_parquet(tmp_path / "proxy" / "ledger.parquet").attrs["scope"] == "universe_proxy"

    pinv = job(composed(*wanted, "audit.inverse=pinv"), tmp_path / "pinv")
    assert (pinv["disclosure/inverse"], pinv["disclosure/damping"], pinv["setting/damping"]) == ("pinv", 0.0, None)
    assert 0 < pinv["disclosure/inside_span_mean"] <= 1
    assert pinv["disclosure/bits_gaussian_mean"] is pinv["disclosure/bits_paper_mean"] is None
    assert "does not see the part of a gradient outside" in (tmp_path / "pinv" / "report.html").read_text()


def test_wandb_gets_scalars_figures_and_ledger_and_an_unpublished_run_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    wanted = [o for o in overrides("none", "mlp", "digits", "attack=membership_only") if o != "logger=none"]

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    with monkeypatch.context() as patched:
        patched.setattr(run_command, "log_to_wandb", fail)
        with pytest.raises(ConnectionError):
            job(composed(*wanted), tmp_path)
    assert not (tmp_path / "results.json").exists()
    results = job(composed(*wanted), tmp_path)
    (offline,) = (tmp_path / "wandb").glob("offline-run-*")
    logged = read_history(next(offline.glob("run-*.wandb")))
    assert logged["utility/test_accuracy"] == results["utility/test_accuracy"]
    names = ("gnq_distribution", "gnq_against_attack", "roc", "highest_and_lowest_gnq")
    assert {f"figures/{name}" for name in names} <= {"/".join(key.split("/")[:2]) for key in logged}
    assert any(key.startswith("ledger") for key in logged)
