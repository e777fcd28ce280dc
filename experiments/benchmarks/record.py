"""The JSON file of a benchmark: written atomically after each model, so that a run can be taken up again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from experiments.benchmarks.settings import Settings, engine_fingerprint, hardware, versions
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import make_folder, write_text

SCHEMA = 1


def load(path: Path, benchmark: str) -> dict[str, Any]:
    """What an earlier run left, or an empty record.

    Raises:
        DisclosureError: the file is not a record of this benchmark.
    """
    if not path.exists():
        return {"schema": SCHEMA, "benchmark": benchmark, "models": {}}
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DisclosureError(f"{path} is not JSON ({error}). Move it away, or give another --output.") from error
    if not isinstance(record, dict) or (record.get("schema"), record.get("benchmark")) != (SCHEMA, benchmark):
        raise DisclosureError(f"{path} is no record of {benchmark}, version {SCHEMA}. Give another --output.")
    return record


def save(path: Path, record: dict[str, Any]) -> None:
    """Write it in one step."""
    make_folder(path.parent)
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def provenance(settings: Settings) -> dict[str, Any]:
    """When, how and on what a model was measured."""
    return {
        "measured": datetime.now().astimezone().isoformat(timespec="seconds"),
        "settings": asdict(settings),
        "hardware": hardware(settings),
        "versions": versions(),
        "engine": engine_fingerprint(),
    }


def why_again(kept: dict[str, Any] | None, settings: Settings, ways: Sequence[str]) -> str | None:
    """Why a model must be measured (again); None if what is kept will do."""
    if kept is None:
        return "not measured yet"
    if kept["settings"] != asdict(settings):
        return "measured with other settings"
    if kept["engine"] != engine_fingerprint():
        return "measured with another version of the Gram engine"
    if kept["versions"] != versions():
        return "measured with other versions of packages"
    missing = [name for name in ways if kept["ways"].get(name, {}).get("status") is None]
    return f"{', '.join(missing)} not measured" if missing else None
