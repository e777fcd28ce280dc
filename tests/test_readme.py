from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_every_python_block_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert len(names["table"]) == 90  # type: ignore[arg-type]
    assert (tmp_path / "ledger.parquet").exists()
    assert names["scores"].shape == (8,)  # type: ignore[attr-defined]
    assert {row.took_part for row in names["gram"].report} == {True}  # type: ignore[attr-defined]


def test_every_file_it_shows_is_there() -> None:
    shown = re.findall(r"(?:src=\"|\]\()([^\")]+\.(?:png|md))", README.read_text())
    assert shown
    assert [name for name in shown if not (README.parent / name).exists()] == []
