"""Reads what an offline W&B run really stored: LevelDB's log format around protocol buffers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

_BLOCK, _HEADER, _FULL, _FIRST, _LAST = 32768, 7, 1, 2, 4


def read_records(path: Path) -> list[Any]:
    """All records of a ``run-*.wandb`` file."""
    data, position, records, pending = path.read_bytes(), 7, [], b""
    while position + _HEADER <= len(data):
        left = _BLOCK - position % _BLOCK
        if left < _HEADER:
            position += left
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + _HEADER])
        position += _HEADER
        chunk = data[position : position + length]
        position += length
        pending = chunk if kind in (_FULL, _FIRST) else pending + chunk
        if kind in (_FULL, _LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            records.append(record)
    return records


def read_history(path: Path) -> dict[str, Any]:
    """The last value of every key that was logged."""
    history: dict[str, Any] = {}
    for record in read_records(path):
        if record.WhichOneof("record_type") == "history":
            for item in record.history.item:
                history["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
    return history


def read_exit(path: Path) -> bool:
    """Whether the run was finished."""
    return any(record.WhichOneof("record_type") == "exit" for record in read_records(path))
