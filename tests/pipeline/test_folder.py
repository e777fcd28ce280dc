from __future__ import annotations

from pathlib import Path

import pytest

from gradient_disclosure.errors import RunFolderError
from gradient_disclosure.pipeline.folder import claim, empty, fingerprint, finished_twin, read_identity


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    claim(tmp_path / "run", "a")
    claim(tmp_path / "run", "a")
    assert read_identity(tmp_path / "run") == "a"
    with pytest.raises(RunFolderError, match="other settings"):
        claim(tmp_path / "run", "b")


def test_a_damaged_identity_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"run\.json is damaged"):
        claim(tmp_path, "a")


def test_only_a_finished_run_with_the_same_number_is_a_twin(tmp_path: Path) -> None:
    for name, number in (("one", "a"), ("two", "b"), ("three", "a")):
        claim(tmp_path / name, number)
    assert finished_twin(tmp_path / "one", "a") is None
    (tmp_path / "two" / "results.json").write_text("{}")
    assert finished_twin(tmp_path / "one", "a") is None
    (tmp_path / "three" / "results.json").write_text("{}")
    assert finished_twin(tmp_path / "one", "a") == tmp_path / "three"


def test_emptying_keeps_hydras_files_and_refuses_foreign_ones(tmp_path: Path) -> None:
    claim(tmp_path, "a")
    (tmp_path / "shadows").mkdir()
    (tmp_path / "run.log").write_text("log")
    empty(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["run.log"]
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(RunFolderError, match=r"mine\.txt"):
        empty(tmp_path)


def test_the_fingerprint_sees_every_value() -> None:
    base = {"a": 1, "b": {"c": [1, 2]}}
    assert fingerprint(base) == fingerprint({"b": {"c": [1, 2]}, "a": 1})
    assert len({fingerprint(base), fingerprint({**base, "a": 1.5}), fingerprint({"a": 1, "b": {"c": [2, 1]}})}) == 3
