"""What an audit will cost, told before it starts; and a refusal, with numbers, where it does not fit."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from gradient_disclosure.dataset_audit.tiling import Tiling
from gradient_disclosure.errors import RunFolderError, UnsupportedTrainingError

GIGABYTE = 1e9
BASE_MEMORY = 0.2e9
"""Beyond the tiles: passes over the batches, and what the allocator keeps."""


@dataclass(frozen=True)
class CostEstimate:
    """What an audit needs.

    Attributes:
        tiling: of the N examples.
        flops: multiplications and additions of factor and inverse, 2N³/3.
        flops_per_second: measured by one product of float64 matrices on this machine, now.
        disk_bytes: of the finished folder.
        memory_bytes: at most, about, on top of what the process has.

    Example:
        >>> CostEstimate.of(Tiling(60_000, 2000), bytes_per_example=5000, flops_per_second=4e10).seconds
        3600.0
    """

    tiling: Tiling
    flops: float
    flops_per_second: float
    disk_bytes: float
    memory_bytes: float

    @classmethod
    def of(cls, tiling: Tiling, bytes_per_example: float, flops_per_second: float) -> CostEstimate:
        """By arithmetic.

        Args:
            tiling: of the N examples.
            bytes_per_example: of the stored gradients.
            flops_per_second: of float64 products.
        """
        n, edge, count = tiling.size, min(tiling.tile, tiling.size), tiling.count
        tile_bytes = 8.0 * edge * edge
        stored = n * bytes_per_example
        # A row of tiles, a few more tiles at work, and the gradients of two tiles, in float64 as well as stored.
        memory = BASE_MEMORY + 8.0 * n * edge + 6 * tile_bytes + 6 * edge * bytes_per_example
        return cls(tiling, 2.0 * n**3 / 3.0, flops_per_second, tile_bytes * count * (count + 1) / 2 + stored, memory)

    @property
    def seconds(self) -> float:
        """Of factor and inverse; gradients, their inner products and the disk come on top."""
        return self.flops / self.flops_per_second

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"{self.tiling.size:,} examples in {self.tiling.count} tiles of up to {self.tiling.tile:,}: "
            f"{self.flops:.2e} flops at {self.flops_per_second / 1e9:.0f} GFLOP/s, about {self.seconds / 60:.1f} "
            f"minutes or more; {self.disk_bytes / GIGABYTE:.1f} GB on disk, {self.memory_bytes / GIGABYTE:.1f} GB of "
            "memory more"
        )


def measured_flops_per_second(edge: int) -> float:
    """Speed of a product of float64 matrices (edge, edge) with the threads that torch has now, the better of two."""
    edge = max(1, min(edge, 1500))
    x = torch.ones(edge, edge, dtype=torch.float64)
    fastest = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        x @ x
        fastest = min(fastest, time.perf_counter() - start)
    return 2.0 * edge**3 / max(fastest, 1e-9)


def refuse_what_does_not_fit(estimate: CostEstimate, folder: Path, on_disk_already: float) -> None:
    """Raise if disk or memory will not do.

    Args:
        estimate: the cost.
        folder: where the tiles go.
        on_disk_already: bytes of finished steps.

    Raises:
        RunFolderError: not enough disk.
        UnsupportedTrainingError: not enough memory.
    """
    free, needed = shutil.disk_usage(folder).free, estimate.disk_bytes - on_disk_already
    if needed > free:
        raise RunFolderError(
            f"the audit of {estimate.tiling.size:,} examples needs {needed / GIGABYTE:.1f} GB more in {folder}, where "
            f"{free / GIGABYTE:.1f} GB are free. Choose a folder on another disk, or audit fewer examples."
        )
    available = available_memory()
    if available is not None and estimate.memory_bytes > available:
        raise UnsupportedTrainingError(
            f"the audit of {estimate.tiling.size:,} examples in tiles of {estimate.tiling.tile:,} needs "
            f"{estimate.memory_bytes / GIGABYTE:.1f} GB of memory, and {available / GIGABYTE:.1f} GB are available. "
            "Use smaller tiles, or audit fewer examples."
        )


def available_memory(source: Path = Path("/proc/meminfo")) -> float | None:
    """Bytes that a new process may take without swapping; None where the system does not tell."""
    try:
        for line in source.read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return float(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None
