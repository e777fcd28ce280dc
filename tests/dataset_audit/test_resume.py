"""Killed at any moment and started again, an audit ends as one that was not, and does nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from gradient_disclosure import Damping
from gradient_disclosure.dataset_audit import DatasetAudit, DatasetAuditSettings, audit_dataset
from gradient_disclosure.dataset_audit.store import JOURNAL, MANIFEST, TileStore, remove_tiles
from gradient_disclosure.errors import RunFolderError
from tests.dataset_audit.cases import case

SETTINGS = DatasetAuditSettings(Damping(0.1), tile=10)
N = 45  # 5 tiles, the last one half: 5 gradients, 15 + 5 of the factor, 5 of its inverse
STEPS = 30


class Killed(BaseException):
    """Not an Exception, so that nothing on the way catches it."""


def audit(folder: Path, stop_after: int | None = None) -> tuple[DatasetAudit, list[str]]:
    """An audit, and the steps that this call made."""
    made: list[str] = []

    def on_step(name: str, fraction: float) -> None:
        made.append(name)
        if stop_after is not None and len(made) == stop_after:
            raise Killed

    module, batches = case("mlp", N)
    return audit_dataset(module, batches, folder, SETTINGS, on_step), made


def assert_same(one: DatasetAudit, other: DatasetAudit) -> None:
    assert torch.equal(one.result.scores, other.result.scores)
    assert torch.equal(one.result.leverage, other.result.leverage)
    assert torch.equal(one.ids, other.ids)


def kill(folder: Path, after: int) -> None:
    with pytest.raises(Killed):
        audit(folder, stop_after=after)


@pytest.mark.parametrize("after", [1, 4, 5, 6, 13, 24, 25, 26, 29, 30])
def test_resumed_equals_uninterrupted_and_nothing_is_made_twice(after: int, tmp_path: Path) -> None:
    whole, steps = audit(tmp_path / "whole")
    assert len(steps) == len(set(steps)) == STEPS
    kill(tmp_path / "killed", after)
    changed = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "killed").iterdir() if path.name in steps}
    assert set(changed) == set(steps[:after])
    resumed, rest = audit(tmp_path / "killed")
    assert rest == steps[after:]
    assert_same(resumed, whole)
    assert {name: (tmp_path / "killed" / name).stat().st_mtime_ns for name in changed} == changed


def test_a_finished_audit_is_read_back(tmp_path: Path) -> None:
    first, _ = audit(tmp_path)
    second, steps = audit(tmp_path)
    assert steps == []
    assert_same(first, second)
    assert second.seconds == pytest.approx(first.seconds)


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone", "empty"])
@pytest.mark.parametrize("victim", ["gradients-00002.safetensors", "factor-00003-00001.npy", "tails-00001.npy"])
def test_a_damaged_file_is_made_anew(victim: str, damage: str, tmp_path: Path) -> None:
    whole, _ = audit(tmp_path)
    path = tmp_path / victim
    content = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        flipped = bytes([content[-9] ^ 1])
        path.write_bytes(
            {"cut": content[:-100], "flipped": content[:-9] + flipped + content[-8:], "empty": b""}[damage]
        )
    again, steps = audit(tmp_path)
    assert steps == [victim]
    assert path.read_bytes() == content
    assert_same(again, whole)


def test_a_file_that_was_written_but_not_noted_is_made_anew(tmp_path: Path) -> None:
    kill(tmp_path, 13)
    journal = tmp_path / JOURNAL
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-1]) + lines[-1][:20])  # the kill came in the middle of a line
    (tmp_path / ".factor-00004-00000.npy.abc.partial").write_bytes(b"half a tile")
    resumed, steps = audit(tmp_path)
    assert len(steps) == STEPS - 12
    assert_same(resumed, audit(tmp_path / "whole")[0])
    assert not list(tmp_path.glob(".*.partial"))


def test_another_models_folder_is_refused(tmp_path: Path) -> None:
    kill(tmp_path, 8)
    module, batches = case("mlp", N)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with torch.no_grad():
        module[0].weight[0, 0] += 1e-9  # type: ignore[index, union-attr, operator]
    with pytest.raises(RunFolderError, match=r"holds the audit of something else.*model: .* there, .* here"):
        audit_dataset(module, batches, tmp_path, SETTINGS)
    module, _ = case("mlp", N)
    x, y, ids = batches[0]
    other_label = [(x, y, ids), (batches[1][0], 2 - batches[1][1], batches[1][2]), *batches[2:]]
    with pytest.raises(RunFolderError, match=r"something else \(data: "):
        audit_dataset(module, other_label, tmp_path, SETTINGS)
    with pytest.raises(RunFolderError, match=r"something else \(damping: 0.1 there, 0.2 here\)"):
        audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.2), tile=10))
    with pytest.raises(RunFolderError, match=r"something else \(tile: 10 there, 9 here\)"):
        audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.1), tile=9))
    doubled = DatasetAuditSettings(Damping(0.1), 10, losses=lambda m, batch: 2 * SETTINGS.losses(m, batch))
    with pytest.raises(RunFolderError, match=r"something else \(measured_loss: "):
        audit_dataset(module, batches, tmp_path, doubled)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_damaged_manifest_is_an_error_in_words(tmp_path: Path) -> None:
    kill(tmp_path, 3)
    (tmp_path / MANIFEST).write_text('{"model": ')
    with pytest.raises(RunFolderError, match=r"manifest\.json is damaged"):
        audit(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(RunFolderError, match="without its manifest"):
        audit(tmp_path)


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with TileStore(tmp_path, {}), pytest.raises(RunFolderError, match="in use by another process"):
        TileStore(tmp_path, {})
    TileStore(tmp_path, {}).__exit__(None, None, None)


def test_tiles_are_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("own", "shared"):
        audit(tmp_path / name)
    (tmp_path / "shared" / "thesis.tex").write_text("years of work")
    for name in ("own", "shared"):
        remove_tiles(tmp_path / name)
    assert not (tmp_path / "own").exists()
    assert [path.name for path in (tmp_path / "shared").iterdir()] == ["thesis.tex"]


def test_a_process_killed_for_real_is_resumed(tmp_path: Path) -> None:
    code = (
        "import time, torch; from pathlib import Path; from tests.dataset_audit.test_resume import *\n"
        "torch.set_num_threads(1); module, batches = case('mlp', N)\n"
        f"audit_dataset(module, batches, Path({str(tmp_path)!r}), SETTINGS, lambda *_: time.sleep(0.1))"
    )
    child = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parents[2], env=dict(os.environ))
    journal = tmp_path / JOURNAL
    deadline = time.monotonic() + 240
    while not journal.exists() or len(journal.read_text().splitlines()) < 9:
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    noted = len(journal.read_text().splitlines())
    resumed, steps = audit(tmp_path)
    assert len(steps) == STEPS - noted
    module, batches = case("mlp", N)
    whole = audit_dataset(module, batches, tmp_path / "whole", SETTINGS)
    torch.testing.assert_close(resumed.result.scores, whole.result.scores, rtol=1e-10, atol=0)
