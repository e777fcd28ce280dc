from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.record import RunRecord
from gradient_disclosure.reporting.report import write_report
from gradient_disclosure.reporting.wandb_run import Mode, log_to_wandb
from tests.reporting.wandb_file import read_exit, read_history

PLOTS = {"figures/gnq_distribution", "figures/gnq_against_attack", "figures/roc"}
WITH_EXAMPLES = {"figures/reconstructions", "figures/highest_and_lowest_gnq"}


class FakeWandb:
    """Stands in for the module: remembers what would be sent."""

    class Error(Exception):
        pass

    def __init__(self, *, fail_to_start: bool = False, fail_to_log: bool = False) -> None:
        self.fail_to_start, self.fail_to_log = fail_to_start, fail_to_log
        self.logged: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.finished = 0

    def init(self, **arguments: Any) -> Any:
        if self.fail_to_start:
            raise self.Error("no API key")
        self.arguments = arguments
        return SimpleNamespace(log=self.log)

    def log(self, values: dict[str, Any]) -> None:
        if self.fail_to_log:
            raise RuntimeError("connection lost")
        self.logged |= values

    def finish(self) -> None:
        self.finished += 1

    def Image(self, path: str) -> tuple[str, str]:
        assert Path(path).is_file()
        return ("image", path)

    def Table(self, dataframe: pd.DataFrame) -> tuple[str, pd.DataFrame]:
        return ("table", dataframe)


@pytest.fixture(scope="module")
def folder(censored_run: RunRecord, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    write_report(censored_run, path)
    return path


def log(record: RunRecord, folder: Path, mode: Mode, *, share_examples: bool = False) -> None:
    log_to_wandb(
        record,
        folder,
        project="test",
        mode=mode,
        run_id="abc123",
        share_examples=share_examples,
        config={"defense": "gnq_censor", "data": {"batch_size": 64}},
    )


def logged_by_fake(
    monkeypatch: pytest.MonkeyPatch, record: RunRecord, folder: Path, mode: Mode, *, share_examples: bool
) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log(record, folder, mode, share_examples=share_examples)
    return fake


@pytest.mark.parametrize(
    ("mode", "share_examples", "with_examples"),
    [("online", False, False), ("online", True, True), ("offline", False, True), ("offline", True, True)],
)
def test_training_examples_go_online_only_when_allowed(
    monkeypatch: pytest.MonkeyPatch,
    censored_run: RunRecord,
    folder: Path,
    mode: Mode,
    share_examples: bool,
    with_examples: bool,
) -> None:
    fake = logged_by_fake(monkeypatch, censored_run, folder, mode, share_examples=share_examples)
    images = {key for key, value in fake.logged.items() if isinstance(value, tuple) and value[0] == "image"}
    assert images == (PLOTS | WITH_EXAMPLES if with_examples else PLOTS)
    assert fake.arguments["mode"] == mode
    assert fake.finished == 1


def test_an_offline_run_that_holds_examples_warns_of_sync(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, censored_run: RunRecord, folder: Path
) -> None:
    with caplog.at_level(logging.WARNING):
        logged_by_fake(monkeypatch, censored_run, folder, "offline", share_examples=True)
        logged_by_fake(monkeypatch, censored_run, folder, "online", share_examples=False)
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        logged_by_fake(monkeypatch, censored_run, folder, "offline", share_examples=False)
    assert "wandb sync` would upload" in caplog.text


def test_disabled_does_nothing(monkeypatch: pytest.MonkeyPatch, censored_run: RunRecord, folder: Path) -> None:
    fake = logged_by_fake(monkeypatch, censored_run, folder, "disabled", share_examples=True)
    assert (fake.logged, fake.finished) == ({}, 0)


def test_missing_numbers_are_left_out_and_nothing_is_text(
    monkeypatch: pytest.MonkeyPatch, censored_run: RunRecord, folder: Path
) -> None:
    logged = logged_by_fake(monkeypatch, censored_run, folder, "online", share_examples=False).logged
    scalars = {key: value for key, value in logged.items() if not isinstance(value, tuple)}
    expected = {
        key: value
        for key, value in censored_run.results.items()
        if value is not None and key.split("/")[0] in {"utility", "disclosure", "attack", "cost", "defense"}
    }
    expected.pop("defense/name")
    assert scalars == expected


def test_a_run_that_fails_while_logging_is_still_finished(
    monkeypatch: pytest.MonkeyPatch, censored_run: RunRecord, folder: Path
) -> None:
    fake = FakeWandb(fail_to_log=True)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(RuntimeError, match="connection lost"):
        log(censored_run, folder, "online")
    assert fake.finished == 1


def test_a_start_that_fails_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, censored_run: RunRecord, folder: Path
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb(fail_to_start=True))
    with pytest.raises(DisclosureError, match=r"no API key.*Nothing is lost.*logger=none"):
        log(censored_run, folder, "online")


def test_a_real_offline_run_holds_scalars_ledger_and_figures(
    monkeypatch: pytest.MonkeyPatch, censored_run: RunRecord, folder: Path, tmp_path: Path
) -> None:
    import wandb

    for name, value in {"WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path), "WANDB_DISABLE_GIT": "true"}.items():
        monkeypatch.setenv(name, value)
    log(censored_run, folder, "offline")
    # W&B's helper process writes the end of the file when it stops, which otherwise happens as Python exits.
    wandb.teardown()
    (run,) = folder.glob("wandb/offline-run-*-abc123")
    (stored,) = run.glob("*.wandb")
    history = read_history(stored)
    assert read_exit(stored)
    assert history["utility/test_accuracy"] == censored_run.results["utility/test_accuracy"]
    assert history["attack/lira_online/auc"] == pytest.approx(censored_run.results["attack/lira_online/auc"])
    assert "attack/lira_online/tpr_at_0.1pct_fpr" not in history
    assert {"/".join(key.split("/")[:2]) for key in history if key.startswith("figures/")} == PLOTS | WITH_EXAMPLES
    (table_path,) = run.glob("files/media/table/*.json")
    table = json.loads(table_path.read_text())
    assert table["columns"] == list(censored_run.examples.columns)
    assert len(table["data"]) == len(censored_run.examples)
    step = table["columns"].index("censored_at_step")
    assert {row[step] for row in table["data"]} == {None, 17}


def test_importing_the_report_does_not_import_wandb() -> None:
    code = (
        "import sys, gradient_disclosure.reporting.report, gradient_disclosure.reporting.wandb_run;"
        "sys.exit('wandb' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
