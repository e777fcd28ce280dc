from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from gradient_disclosure.errors import DisclosureError, RunFolderError
from gradient_disclosure.files import (
    load_state,
    make_folder,
    write_atomically,
    write_bytes,
    write_json,
    write_parquet,
    write_text,
)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_json_refuses_what_is_not_a_number_and_names_the_key(tmp_path: Path, value: float) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(DisclosureError, match=r"results\.json.*'attack/dlg/init/ssim'"):
        write_json(path, {"utility/test_accuracy": 0.5, "attack/dlg/init/ssim": value})
    assert list(tmp_path.iterdir()) == []


def test_json_refuses_nested_values_by_key(tmp_path: Path) -> None:
    with pytest.raises(DisclosureError, match="'meta/versions' holds a dict"):
        write_json(tmp_path / "results.json", {"meta/versions": {"torch": "2"}})  # type: ignore[dict-item]


def test_json_is_sorted_and_keeps_types(tmp_path: Path) -> None:
    values = {"b": None, "a/x": 0.1, "c": True, "B": 3, "d": "ε = 1"}
    write_json(tmp_path / "results.json", values)
    content = (tmp_path / "results.json").read_text(encoding="utf-8")
    assert json.loads(content) == values
    assert list(json.loads(content)) == sorted(values)
    assert "ε" in content


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_text(path, "old")

    def fail_halfway(temporary: Path) -> None:
        assert temporary.parent == tmp_path
        temporary.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunFolderError, match="No space left on device"):
        write_atomically(path, fail_halfway)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_appears_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"

    def look(temporary: Path) -> None:
        temporary.write_bytes(b"1")
        assert not path.exists()

    write_atomically(path, look)
    assert path.read_bytes() == b"1"


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_a_folder_that_is_none_is_named_with_what_to_do(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / folder / "ledger.parquet"
    with pytest.raises(RunFolderError, match=r"ledger\.parquet.*choose another output folder"):
        write_parquet(pd.DataFrame({"a": [1]}), path)
    with pytest.raises(RunFolderError):
        write_bytes(path, b"")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to read-only folders")
def test_a_read_only_folder_is_an_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match="Permission denied"):
        write_text(tmp_path / "a.txt", "")


def test_a_folder_cannot_be_made_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="Cannot create the folder"):
        make_folder(tmp_path / "file" / "figures")


def test_parquet_round_trip_keeps_nullable_integers(tmp_path: Path) -> None:
    frame = pd.DataFrame({"censored_at_step": pd.array([3, None], dtype="Int64"), "gnq_total": [0.5, float("nan")]})
    write_parquet(frame, tmp_path / "ledger.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "ledger.parquet"), frame)


class Malicious:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must not run",))


def test_a_state_that_would_run_code_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"weights": Malicious()}, tmp_path / "state.pt")
    with pytest.raises(RunFolderError, match="damaged"):
        load_state(tmp_path / "state.pt")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut"])
def test_a_damaged_state_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "state.pt").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"state\.pt is damaged"):
        load_state(tmp_path / "state.pt")
