"""The folder of an audit: finished arrays, a journal of them, and a manifest that says what they belong to.

A step counts as finished once its file is in place under its own name AND the journal holds a line with its size and
checksum. Whatever a kill leaves beside that is made anew; what is finished is never made again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import resource
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor

from gradient_disclosure.errors import RunFolderError
from gradient_disclosure.files import make_folder, write_atomically, write_text

logger = logging.getLogger(__name__)

MANIFEST, JOURNAL, LOCK = "manifest.json", "finished.jsonl", "lock"


class TileStore:
    """Arrays on disk that survive a kill at any moment; one process at a time.

    Args:
        folder: created if missing.
        identity: what the arrays depend on, plain values; a folder of another audit is refused.

    Raises:
        RunFolderError: the folder is another audit's, is in use, is damaged or cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, TileStore(Path(folder), {"model": "a"}) as store:
        ...     store.put("x", torch.ones(2))
        ...     "x" in store, store.get("x").tolist()
        (True, [1.0, 1.0])
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        make_folder(folder)
        self._lock = _locked(folder / LOCK)
        try:
            _claim(folder, identity)
            for left_over in folder.glob(".*.partial"):
                left_over.unlink()
            self._finished = _sound(folder, _journal(folder / JOURNAL))
            content = "".join(json.dumps(entry) + "\n" for entry in self._finished.values())
            write_text(folder / JOURNAL, content)
            self._journal = (folder / JOURNAL).open("a", encoding="utf-8")
            self._clock = _clock()
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> TileStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._journal.close()
        self._lock.close()

    def __contains__(self, name: str) -> bool:
        return name in self._finished

    def path(self, name: str) -> Path:
        """Where an array is kept."""
        return self.folder / name

    def put(self, name: str, array: Tensor) -> None:
        """Keep an array; the step that made it is then finished.

        Args:
            name: of the step.
            array: any tensor on the CPU.
        """

        def write(temporary: Path) -> None:
            with temporary.open("wb") as stream:
                np.save(stream, array.contiguous().numpy(), allow_pickle=False)

        write_atomically(self.path(name), write)
        self.record(name)

    def get(self, name: str) -> Tensor:
        """A finished array."""
        return torch.from_numpy(np.load(self.path(name), allow_pickle=False))

    def record(self, name: str) -> None:
        """Note that the file of a step is in place, and what passed since the step before it."""
        size, checksum = _measured(self.path(name))
        before, self._clock = self._clock, _clock()
        entry = {
            "name": name,
            "bytes": size,
            "crc32": checksum,
            "seconds": self._clock[0] - before[0],
            "cpu_seconds": self._clock[1] - before[1],
            "peak_memory": peak_memory(),
        }
        try:
            self._journal.write(json.dumps(entry) + "\n")
            self._journal.flush()
        except OSError as error:
            raise RunFolderError(f"Cannot write {self.folder / JOURNAL}: {error.strerror or error}.") from error
        self._finished[name] = entry

    @property
    def seconds(self) -> float:
        """Wall time of the finished steps, those of earlier processes included."""
        return float(sum(entry["seconds"] for entry in self._finished.values()))

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the finished steps, of all threads: what other work on the machine changes little."""
        return float(sum(entry["cpu_seconds"] for entry in self._finished.values()))

    @property
    def peak_memory(self) -> int:
        """Most resident memory, in bytes, of any process that did a step."""
        return int(max((entry["peak_memory"] for entry in self._finished.values()), default=0))

    @property
    def bytes(self) -> int:
        """Size of the finished arrays on disk."""
        return int(sum(entry["bytes"] for entry in self._finished.values()))


def remove_tiles(folder: Path) -> None:
    """Delete the files of an audit, and the folder if nothing else is in it.

    Raises:
        RunFolderError: the audit is still at work.
    """
    lock = _locked(folder / LOCK)
    try:
        for name in (*_journal(folder / JOURNAL), JOURNAL, MANIFEST, LOCK):
            (folder / name).unlink(missing_ok=True)
    finally:
        lock.close()
    if not any(folder.iterdir()):
        folder.rmdir()


def peak_memory() -> int:
    """Most resident memory this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _clock() -> tuple[float, float]:
    """Seconds of wall time and of processor time."""
    return time.perf_counter(), time.process_time()


def _locked(path: Path) -> TextIO:
    """The lock of a folder; the system gives it back when the process ends, however it ends."""
    try:
        stream = path.open("a", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(f"Cannot write {path}: {error.strerror or error}. Choose another folder.") from error
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.close()
        raise RunFolderError(
            f"{path.parent} is in use by another process that audits. Wait for it, or choose another folder."
        ) from error
    return stream


def _claim(folder: Path, identity: Mapping[str, Any]) -> None:
    path, plain = folder / MANIFEST, json.loads(json.dumps(dict(identity)))
    if not path.exists():
        if (folder / JOURNAL).exists():
            raise RunFolderError(f"{folder} holds an audit without its {MANIFEST}. Empty it, or choose another.")
        write_text(path, json.dumps(plain, indent=2, sort_keys=True) + "\n")
        return
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        names = sorted(held.keys() | plain.keys())
    except (ValueError, AttributeError) as error:
        raise RunFolderError(f"{path} is damaged ({error}). Empty the folder to start anew.") from error
    changed = [
        f"{name}: {held.get(name)} there, {plain.get(name)} here" for name in names if not _same(name, held, plain)
    ]
    if changed:
        raise RunFolderError(
            f"{folder} holds the audit of something else ({'; '.join(changed)}). Its tiles are not used. Choose "
            "another folder, or empty this one to start anew."
        )


def _same(name: str, held: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Equal, and for a measured number to what another number of threads may change."""
    a, b = held.get(name), here.get(name)
    if name.startswith("measured_") and isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-4 * max(abs(a), abs(b))
    return bool(a == b)


def _journal(path: Path) -> dict[str, dict[str, Any]]:
    """Its entries; a line that a kill cut off is no entry."""
    entries: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
            entries[entry["name"]] = entry
        except (ValueError, KeyError, TypeError):
            logger.warning("%s: a line that cannot be read is left out; its step is done again", path)
    return entries


def _sound(folder: Path, entries: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those whose file is as it was when it was finished."""
    sound = {}
    for name, entry in entries.items():
        path = folder / name
        if path.is_file() and _measured(path) == (entry.get("bytes"), entry.get("crc32")):
            sound[name] = entry
        else:
            logger.warning("%s is missing or damaged; its step is done again", path)
    return sound


def _measured(path: Path) -> tuple[int, int]:
    """Size and checksum of a file."""
    checksum = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return os.path.getsize(path), checksum
