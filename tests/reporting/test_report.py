from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from gradient_disclosure.errors import DisclosureError, RunFolderError
from gradient_disclosure.reporting.record import RunRecord
from gradient_disclosure.reporting.report import write_report
from tests.reporting.fake_record import tabular_record


def test_a_whole_report_is_written_and_reads_back(censored_run: RunRecord, tmp_path: Path) -> None:
    files = write_report(censored_run, tmp_path / "new" / "run")
    assert json.loads(files.results.read_text(encoding="utf-8")) == dict(censored_run.results)
    pd.testing.assert_frame_equal(pd.read_parquet(files.ledger), censored_run.examples)
    assert set(files.figures) == {
        "gnq_distribution",
        "gnq_against_attack",
        "roc",
        "reconstructions",
        "highest_and_lowest_gnq",
    }
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in files.figures.values())
    html = files.html.read_text(encoding="utf-8")
    assert html.count('<figure class="plot"') == 5
    written = {path for path in (tmp_path / "new" / "run").rglob("*") if path.is_file()}
    assert written == {files.results, files.ledger, files.html, *files.figures.values()}


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_report(tabular_record(), tmp_path / "a")
    second = write_report(tabular_record(), tmp_path / "b")
    assert first.html.read_bytes() == second.html.read_bytes()
    assert first.figures["roc"].read_bytes() == second.figures["roc"].read_bytes()
    assert set(first.figures) == {"gnq_distribution", "gnq_against_attack", "roc"}


def test_a_result_that_is_nan_leaves_no_report_at_all(censored_run: RunRecord, tmp_path: Path) -> None:
    broken = replace(tabular_record(), results={**censored_run.results, "cost/total_seconds": float("nan")})
    with pytest.raises(DisclosureError, match="cost/total_seconds"):
        write_report(broken, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="Choose another output folder"):
        write_report(tabular_record(), tmp_path / "file" / "run")
