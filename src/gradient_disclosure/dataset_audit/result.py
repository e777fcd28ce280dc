"""The outcome of an audit of a data set, and its files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from gradient_disclosure.errors import RunFolderError
from gradient_disclosure.files import make_folder, write_json, write_parquet
from gradient_disclosure.scores.gnq import Damping, GnqResult

SCORES, SETTINGS = "dataset_gnq.parquet", "dataset_gnq.json"
Value = float | int | str | bool | None


@dataclass(frozen=True)
class DatasetAudit:
    """Gradient uniqueness of every example among all N, at one state of the weights.

    Attributes:
        ids: (N,) int64, in the order of ``result``.
        result: scores, leverages and squared norms (N,), λ in units of the sum over the data set, scope "dataset".
        damping: the damping asked for.
        tile: examples along one side of a tile.
        coverage: fraction of the trainable parameters in the Gram matrix.
        seconds: wall time of all steps, those of killed processes included.
        cpu_seconds: processor time of the same, of all threads.
        peak_memory: most resident memory of any process, in bytes.
        disk_bytes: size of the folder of tiles.
        model: checksum of the weights.
        data: checksum of the examples.
    """

    ids: Tensor
    result: GnqResult
    damping: Damping
    tile: int
    coverage: float
    seconds: float
    cpu_seconds: float
    peak_memory: int
    disk_bytes: int
    model: str
    data: str

    def table(self) -> pd.DataFrame:
        """One row an example: index, gnq, leverage, squared_norm."""
        return pd.DataFrame(
            {
                "index": self.ids.numpy(),
                "gnq": self.result.scores.numpy(),
                "leverage": self.result.leverage.numpy(),
                "squared_norm": self.result.squared_norms.numpy(),
            }
        )

    def summary(self) -> dict[str, Value]:
        """Settings and costs, flat."""
        relative = self.result.relative_damping
        return {
            "scope": self.result.scope,
            "inverse": self.result.inverse,
            "examples": self.ids.numel(),
            "damping": self.result.damping,
            "relative_damping": relative if relative < float("inf") else None,
            "damping_value": self.damping.value,
            "damping_kind": self.damping.kind,
            "effective_dimension": self.result.effective_rank,
            "mean_squared_norm": float(self.result.squared_norms.mean()),
            "coverage": self.coverage,
            "tile": self.tile,
            "seconds": self.seconds,
            "cpu_seconds": self.cpu_seconds,
            "peak_memory_bytes": self.peak_memory,
            "disk_bytes": self.disk_bytes,
            "model": self.model,
            "data": self.data,
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
        }

    def save(self, folder: Path) -> None:
        """Write ``dataset_gnq.parquet`` and, last, ``dataset_gnq.json``.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        make_folder(folder)
        write_parquet(self.table(), folder / SCORES)
        write_json(folder / SETTINGS, self.summary())

    @classmethod
    def load(cls, folder: Path) -> DatasetAudit:
        """Inverse of :meth:`save`.

        Raises:
            RunFolderError: the files are not there or damaged.
        """
        try:
            table, kept = pd.read_parquet(folder / SCORES), json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
            columns = {name: torch.tensor(table[name].to_numpy()) for name in table.columns}
            result = GnqResult(
                columns["gnq"], columns["leverage"], columns["squared_norm"], kept["damping"], scope=kept["scope"]
            )
            damping = Damping(kept["damping_value"], kept["damping_kind"])
            names = ("tile", "coverage", "seconds", "cpu_seconds", "disk_bytes", "model", "data")
            rest = {name: kept[name] for name in names}
            return cls(columns["index"], result, damping, peak_memory=kept["peak_memory_bytes"], **rest)
        except (OSError, ValueError, KeyError) as error:
            raise RunFolderError(
                f"{folder} holds no complete audit of a data set ({type(error).__name__}: {error})"
            ) from error
