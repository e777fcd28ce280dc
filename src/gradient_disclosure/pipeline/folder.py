"""The folder of a run: whose it is, and whether the run in it is complete."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gradient_disclosure.errors import RunFolderError
from gradient_disclosure.files import make_folder, write_text

IDENTITY = "run.json"
RESULTS = "results.json"


def fingerprint(config: Mapping[str, Any]) -> str:
    """Hash of everything that decides a run's numbers.

    Args:
        config: nested plain values; what does not matter (folders, loggers, settings that nothing uses) left out.

    Returns:
        16 hexadecimal digits, independent of the order of keys.

    Example:
        >>> fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
        True
    """
    canonical = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def claim(folder: Path, identity: str, settings: Mapping[str, Any] | None = None) -> None:
    """Take a folder for a run, or go on with it if it is the same run's.

    Args:
        folder: created if missing.
        identity: fingerprint of the run.
        settings: what the fingerprint was made from, so that a clash can be explained.

    Raises:
        RunFolderError: the folder cannot be written, or holds another run.
    """
    make_folder(folder)
    owner = folder / IDENTITY
    if not owner.exists():
        content = {"fingerprint": identity, "settings": dict(settings or {})}
        write_text(owner, json.dumps(content, indent=2, default=str) + "\n")
        return
    held = read_identity(folder)
    if held != identity:
        raise RunFolderError(
            f"{folder} holds a run with other settings{_differences(owner, settings or {})}. Start anew in it with "
            "fresh=true, or choose another folder with hydra.run.dir=..."
        )


def _differences(owner: Path, settings: Mapping[str, Any]) -> str:
    """Which settings differ from those a folder was claimed with."""
    here = flattened(json.loads(json.dumps(settings, default=str)))
    there = flattened(json.loads(owner.read_text()).get("settings", {}))
    names = [name for name in sorted(here.keys() | there.keys()) if here.get(name) != there.get(name)]
    shown = [f"{name}: {there.get(name)} there, {here.get(name)} here" for name in names]
    return f" ({'; '.join(shown)})" if shown else ""


def flattened(node: Any, path: str = "") -> dict[str, Any]:
    """Nested mappings as one, under dotted paths.

    Example:
        >>> flattened({"a": {"b": 1}, "c": 2})
        {'a.b': 1, 'c': 2}
    """
    if not isinstance(node, Mapping):
        return {path: node}
    return {k: v for key, child in node.items() for k, v in flattened(child, f"{path}.{key}".lstrip(".")).items()}


def empty(folder: Path) -> None:
    """Remove what an earlier run left in its folder; Hydra's own log and config of the present job stay.

    Raises:
        RunFolderError: there is something in the folder, but no run: nothing is removed then.
    """
    entries = (
        [entry for entry in folder.iterdir() if entry.name not in (".hydra", "run.log")] if folder.is_dir() else []
    )
    if entries and not (folder / IDENTITY).exists():
        raise RunFolderError(f"{folder} holds files that are no run's ({entries[0].name}, ...); they are not removed.")
    for entry in entries:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def read_identity(folder: Path) -> str | None:
    """Fingerprint of the run a folder belongs to, None if it belongs to none."""
    owner = folder / IDENTITY
    if not owner.exists():
        return None
    try:
        return str(json.loads(owner.read_text())["fingerprint"])
    except (ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{owner} is damaged ({error}). Delete the folder to start the run anew.") from None


def finished_twin(folder: Path, identity: str) -> Path | None:
    """A complete run with the same fingerprint in a folder beside this one (jobs of one sweep), if there is one."""
    if not folder.parent.is_dir():
        return None
    for other in sorted(folder.parent.iterdir()):
        if other != folder and (other / RESULTS).exists() and read_identity(other) == identity:
            return other
    return None
