from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from experiments.compare import main
from gradient_disclosure.files import write_json
from tests.reporting.fake_record import fake_record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for name, defense, epsilon in (("1", "dp_sgd", 1.0), ("8", "dp_sgd", 8.0), ("x", "gnq_censor", None)):
        folder = tmp_path / "sweep" / name
        folder.mkdir(parents=True)
        write_json(folder / "results.json", fake_record(defense=defense, epsilon=epsilon, size=100).results)
    return tmp_path / "sweep"


def test_a_sweep_becomes_three_files_and_a_table(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(sweep)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "DP-SGD" in printed.out
    assert "GNQ censor" in printed.out
    assert max(len(line) for line in printed.out.splitlines()) <= 120 + len(str(sweep))
    frame = pd.read_csv(sweep / "compare.csv", na_values="–")
    assert frame["run"].astype(str).tolist() == ["x", "1", "8"]
    assert frame["defense/epsilon"].tolist()[1:] == [1.0, 8.0]
    assert (sweep / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "Comparison of 3 runs" in (sweep / "compare.html").read_text(encoding="utf-8")


def test_several_folders_go_where_told(sweep: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    assert main([str(sweep / "1"), str(sweep / "x"), "--out", str(out)]) == 0
    assert len(pd.read_csv(out / "compare.csv")) == 2
    assert not (sweep / "1" / "compare.csv").exists()


def test_an_unreadable_file_is_named_and_the_rest_is_compared(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (sweep / "8" / "results.json").write_text("{broken")
    assert main([str(sweep)]) == 1
    assert str(sweep / "8" / "results.json") in capsys.readouterr().err
    assert len(pd.read_csv(sweep / "compare.csv")) == 2
    assert "results.json cannot be read" in (sweep / "compare.html").read_text(encoding="utf-8")


def test_nothing_readable_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results.json").write_text("{broken")
    assert main([str(tmp_path)]) == 2
    assert "None of the files found can be compared" in capsys.readouterr().err
    assert not (tmp_path / "compare.csv").exists()


def test_no_runs_is_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert f"No results.json was found in or below {tmp_path}" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "There is no folder" in capsys.readouterr().err


def test_the_command_runs_as_a_module(sweep: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.compare", str(sweep)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(sweep / "compare.html") in done.stdout
