from __future__ import annotations

from pathlib import Path

import pytest

from gradient_disclosure.dataset_audit.cost import (
    CostEstimate,
    available_memory,
    measured_flops_per_second,
    refuse_what_does_not_fit,
)
from gradient_disclosure.dataset_audit.tiling import Tiling
from gradient_disclosure.errors import RunFolderError, UnsupportedTrainingError


def test_the_estimate_is_plain_arithmetic() -> None:
    estimate = CostEstimate.of(Tiling(60_000, 2000), bytes_per_example=5000, flops_per_second=4e10)
    assert estimate.flops == 2 * 60_000**3 / 3
    assert estimate.disk_bytes == 465 * 2000**2 * 8 + 60_000 * 5000
    assert 0.96e9 < estimate.memory_bytes < 2e9
    assert "60,000 examples in 30 tiles of up to 2,000: 1.44e+14 flops at 40 GFLOP/s" in str(estimate)
    assert "about 60.0 minutes or more; 15.2 GB on disk" in str(estimate)
    assert measured_flops_per_second(100) > 1e6


def test_no_room_on_disk_is_refused_with_numbers(tmp_path: Path) -> None:
    huge = CostEstimate.of(Tiling(10**8, 2000), 1.0, 1e9)
    with pytest.raises(RunFolderError, match=r"needs 40000800\.1 GB more in .*, where [\d.]+ GB are free"):
        refuse_what_does_not_fit(huge, tmp_path, on_disk_already=0.0)


def test_no_room_in_memory_is_refused_with_numbers(tmp_path: Path) -> None:
    available = available_memory()
    if available is None:
        pytest.skip("the system does not tell how much memory is available")
    wide = CostEstimate(Tiling(10, 2), 1.0, 1.0, disk_bytes=0.0, memory_bytes=2 * available)
    with pytest.raises(UnsupportedTrainingError, match=r"GB of memory, and [\d.]+ GB are available. Use smaller tiles"):
        refuse_what_does_not_fit(wide, tmp_path, on_disk_already=0.0)


def test_available_memory_is_read_or_unknown(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    2 kB\n")
    assert available_memory(tmp_path / "meminfo") == 2048
    (tmp_path / "meminfo").write_text("MemAvailable: many\n")
    assert available_memory(tmp_path / "meminfo") is None
    assert available_memory(tmp_path / "nothing") is None
