"""Refuse an output folder that cannot be written before Hydra itself stumbles over it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from gradient_disclosure.errors import RunFolderError
from gradient_disclosure.files import make_folder


class FolderCheck(Callback):
    """Creates the folder of the run or sweep, or ends the command with one clear sentence."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a single run."""
        _make(config.hydra.run.dir)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Before a sweep."""
        _make(config.hydra.sweep.dir)


def _make(folder: str) -> None:
    try:
        make_folder(Path(folder))
    except RunFolderError as error:
        sys.exit(f"RunFolderError: {error}")
