"""Writing files so that a crash leaves the old file or the new one, never half of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from gradient_disclosure.reporting.files import make_folder, write_atomically, write_json, write_parquet, write_text

__all__ = ["load_state", "make_folder", "save_state", "write_atomically", "write_json", "write_parquet", "write_text"]


def save_state(state: dict[str, Any], path: Path) -> None:
    """Write tensors, numbers and plain containers, whole or not at all."""
    write_atomically(path, lambda temporary: torch.save(state, temporary))


def load_state(path: Path) -> dict[str, Any]:
    """Inverse of :func:`save_state`; nothing in the file can run code."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state
