"""The command line itself, in processes of their own: killed, swept, mistyped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.experiments.composing import ROOT

SMALL = (
    "preset=smoke",
    "logger=none",
    "data.loader.pool_size=120",
    "data.loader.test_size=40",
    "training.checkpoint_every_n_steps=2",
)
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    flags = [argument for argument in arguments if argument.startswith("-")]
    overrides = [argument for argument in arguments if not argument.startswith("-")]
    return [sys.executable, "-m", "experiments.run", *flags, *SMALL, *overrides]


def finish(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def outcome(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    results = json.loads((folder / "results.json").read_text())
    timeless = {k: v for k, v in results.items() if not k.startswith("cost/") and k != "meta/started"}
    return timeless, pd.read_parquet(folder / "ledger.parquet")


def kill_when(folder: Path, wanted: str, arguments: tuple[str, ...]) -> bool:
    """Start the command, kill it with SIGKILL once a file appears; whether it was killed before its end."""
    process = subprocess.Popen(
        command(*arguments), cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        if list(folder.glob(wanted)):
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.003)
    process.kill()
    return False


@pytest.mark.parametrize("defense", ["gnq_censor", "dp_sgd"])
def test_kill_9_and_the_same_command_end_in_the_same_results(defense: str, tmp_path: Path) -> None:
    arguments = (f"+defense={defense}", "training.epochs=100")
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    done = finish(*arguments, f"hydra.run.dir={straight}")
    assert done.returncode == 0, done.stderr
    here = (*arguments, f"hydra.run.dir={killed}")
    moments = ("target/checkpoint.ckpt", "shadows/001/checkpoint.ckpt", "shadows/003/signals.pt")
    assert [kill_when(killed, moment, here) for moment in moments] == [True, True, True]
    assert not (killed / "results.json").exists()
    done = finish(*here)
    assert done.returncode == 0, done.stderr
    (results, ledger), (expected_results, expected_ledger) = outcome(killed), outcome(straight)
    assert results == expected_results
    assert ledger.equals(expected_ledger)


def test_a_sweep_trains_each_run_once_and_compares(tmp_path: Path) -> None:
    sweep = tmp_path / "sweep"
    done = finish(
        "-m",
        "+defense=dp_sgd,gnq_censor",
        "epsilon=1,8",
        "data.batch_size=16,32",
        "attack=membership_only",
        f"hydra.sweep.dir={sweep}",
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(path.read_text()) for path in sweep.glob("*/results.json")]
    assert len(results) == 8
    copied = [r for r in results if "meta/copied_from" in r]
    assert len(copied) == 2
    assert all(r["defense/name"] == "gnq_censor" for r in copied)
    private = {(r["setting/epsilon"], r["setting/batch_size"]) for r in results if r["defense/name"] == "dp_sgd"}
    assert private == {(1, 16), (1, 32), (8, 16), (8, 32)}
    for r in results:
        if r["defense/name"] == "dp_sgd":
            assert 0.9 * r["setting/epsilon"] < r["defense/epsilon"] <= r["setting/epsilon"]
    compared = subprocess.run(
        [sys.executable, "-m", "experiments.compare", str(sweep), "--out", str(tmp_path / "out")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert compared.returncode == 0, compared.stderr
    assert "–" in compared.stdout
    for name in ("compare.csv", "compare.html", "compare.png"):
        assert (tmp_path / "out" / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("trainign.epochs=3",), "trainign"),
        (("+defense=gnq_censr",), "gnq_censor"),
        (("data=adult", "model=mlp", "data.root=/nowhere"), "MissingDataError"),
        (("data=digits", "data.loader.pool_size=5000"), "5000"),
        (("hydra.run.dir=/proc/nowhere",), "RunFolderError: Cannot create the folder /proc/nowhere"),
    ],
)
def test_mistakes_end_in_a_clear_message(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    folder = () if arguments[0].startswith("hydra") else (f"hydra.run.dir={tmp_path}",)
    done = finish(*arguments, *folder)
    assert done.returncode != 0
    assert words in done.stderr
    assert not (tmp_path / "results.json").exists()
