"""How the benchmark is run, and on what."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

import gradient_disclosure

PACKAGES = ("torch", "torchvision", "transformers", "opacus", "numpy", "gradient-disclosure")


@dataclass(frozen=True)
class Settings:
    """How the benchmark is run.

    Attributes:
        device: "cpu" or "cuda".
        threads: of torch on the CPU.
        rounds: interleaved rounds at most.
        seconds_per_way: measured steps of a way take about so long at most, but there are two at least.
        step_limit: a step that takes more seconds is broken off, and reported so.
        memory_fraction: a way that needs more than this fraction of the free memory is not tried, and reported so.
        seed: of weights, data and the order of the steps.
    """

    device: str = "cpu"
    threads: int = 2
    rounds: int = 40
    seconds_per_way: float = 120.0
    step_limit: float = 300.0
    memory_fraction: float = 0.85
    seed: int = 0

    @property
    def torch_device(self) -> torch.device:
        """The device itself."""
        return torch.device(self.device)

    @property
    def tolerance(self) -> float:
        """How far an exact way's Gram may be from ours, relative to its largest entry.

        Competitors multiply in float32; on a GPU convolutions may round their inputs to 10 bits (TF32) besides.
        """
        return 1e-4 if self.device == "cpu" else 5e-3


def hardware(settings: Settings) -> dict[str, str | int]:
    """What it ran on."""
    found: dict[str, str | int] = {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
    }
    if settings.device == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["products"] = torch.get_float32_matmul_precision()
        found["convolutions"] = "TF32" if torch.backends.cudnn.allow_tf32 else "float32"
    return found


def cpu_name() -> str:
    """As the kernel tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """Of the packages that matter, and of Python."""
    return {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}


def engine_fingerprint() -> str:
    """Of the source of the Gram engine: results of another one are not taken for this one's."""
    digest = hashlib.sha256()
    for path in sorted((Path(gradient_disclosure.__file__).parent / "gram").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
