"""Finished settings of an experiment, one small JSON file each, written as they land."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import make_folder, write_text
from gradient_disclosure.pipeline.folder import fingerprint

PACKAGES = ("torch", "lightning", "opacus", "gradient-disclosure")
Row = dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """A folder of finished settings.

    Attributes:
        folder: where they lie; created with the first.
    """

    folder: Path

    def get(self, name: str, settings: Mapping[str, Any], make: Callable[[], Row]) -> Row:
        """The row of a setting: as it was kept if the settings are the same, else made now and kept.

        Args:
            name: of the file.
            settings: all that decides the row, as JSON.
            make: computes it.

        Raises:
            DisclosureError: a kept file that cannot be read.
        """
        kept = self.read(name)
        identity = fingerprint(dict(settings))
        if kept is not None and kept["fingerprint"] == identity:
            return kept
        row = {"name": name, "fingerprint": identity, "settings": dict(settings), **provenance(), **make()}
        make_folder(self.folder)
        write_text(self._path(name), json.dumps(row, indent=1, allow_nan=False))
        return row

    def read(self, name: str) -> Row | None:
        """A kept row, whatever its settings; None if there is none."""
        path = self._path(name)
        if not path.exists():
            return None
        try:
            row: Row = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DisclosureError(f"{path} is not JSON ({error}): delete it, and it is made again.") from error
        return row

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"


def provenance() -> dict[str, Any]:
    """When and on what a row was made."""
    return {
        "date": datetime.now().astimezone().date().isoformat(),
        "hardware": f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} thread(s)",
        "versions": {name: version(name) for name in PACKAGES},
    }
