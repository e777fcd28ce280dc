"""Writing files so that a crash leaves the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from gradient_disclosure.errors import DisclosureError, RunFolderError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, then put it in place in one step.

    Args:
        path: the file to create or replace; its folder must exist.
        write: called with the temporary path.

    Raises:
        RunFolderError: if the folder is missing, not writable or full.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "a.txt", lambda path: print(path.write_text("done")))
        ...     (Path(folder) / "a.txt").read_text()
        4
        'done'
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as error:
        raise RunFolderError(
            f"Cannot write {path}: {error.strerror or error}. Check that the folder {path.parent} exists, is writable "
            "and has space left, or choose another output folder."
        ) from error
    finally:
        # A folder that is missing or not a folder has no temporary file to remove.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write UTF-8 text atomically.

    Raises:
        RunFolderError: if the folder is missing, not writable or full.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_text(Path(folder) / "a.txt", "GNQ")
        ...     (Path(folder) / "a.txt").read_text(encoding="utf-8")
        'GNQ'
    """
    write_bytes(path, content.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes atomically.

    Raises:
        RunFolderError: if the folder is missing, not writable or full.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_bytes(Path(folder) / "a.bin", b"GNQ")
        ...     (Path(folder) / "a.bin").read_bytes()
        b'GNQ'
    """

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, write)


def to_json(name: str, mapping: Mapping[str, float | int | str | bool | None]) -> str:
    """Turn flat results into JSON with sorted keys.

    Args:
        name: what the results are called in an error.
        mapping: plain numbers, text, booleans and None.

    Returns:
        The text, ending in a line break.

    Raises:
        DisclosureError: if a value is NaN, infinite or of another type; the message names its key.

    Example:
        >>> print(to_json("results.json", {"b": None, "a": 0.5}), end="")
        {
          "a": 0.5,
          "b": null
        }
    """
    for key, value in mapping.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise DisclosureError(f"{name}: {key!r} holds a {type(value).__name__}; use a plain number, text or None.")
        if isinstance(value, float) and not math.isfinite(value):
            raise DisclosureError(
                f"{name}: the value of {key!r} is {value}, which JSON cannot hold. "
                "Use None where a number does not apply; otherwise find out where it comes from."
            )
    return json.dumps(dict(mapping), indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: Path, mapping: Mapping[str, float | int | str | bool | None]) -> None:
    """Write flat results as JSON, atomically; see ``to_json``.

    Raises:
        DisclosureError: if a value is NaN, infinite or of another type; the message names its key.
        RunFolderError: if the folder is missing, not writable or full.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_json(Path(folder) / "results.json", {"a": 0.5})
        ...     json.loads((Path(folder) / "results.json").read_text())
        {'a': 0.5}
    """
    write_text(path, to_json(path.name, mapping))


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Write a table as Parquet, atomically, without its index.

    Raises:
        RunFolderError: if the folder is missing, not writable or full.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     write_parquet(pd.DataFrame({"index": [3]}), Path(folder) / "ledger.parquet")
        ...     pd.read_parquet(Path(folder) / "ledger.parquet")["index"].tolist()
        [3]
    """

    def write(temporary: Path) -> None:
        frame.to_parquet(temporary, index=False)

    write_atomically(path, write)


def make_folder(path: Path) -> None:
    """Create a folder and its parents where they are missing.

    Raises:
        RunFolderError: if that is not possible.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     make_folder(Path(folder) / "a" / "b")
        ...     (Path(folder) / "a" / "b").is_dir()
        True
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"Cannot create the folder {path}: {error.strerror or error}. Choose another output folder."
        ) from error


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write tensors, numbers and plain containers, atomically.

    Raises:
        RunFolderError: if the folder is missing, not writable or full.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     save_state({"weights": torch.ones(2), "step": 3}, Path(folder) / "state.pt")
        ...     load_state(Path(folder) / "state.pt")
        {'weights': tensor([1., 1.]), 'step': 3}
    """
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def load_state(path: Path) -> dict[str, Any]:
    """Inverse of :func:`save_state`; nothing in the file can run code.

    Raises:
        RunFolderError: if the file is damaged, or holds anything but tensors and plain containers.
    """
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged and cannot be read ({type(error).__name__}). Delete it: what it held is made anew."
        ) from error
    return state
