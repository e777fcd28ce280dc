from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from experiments.benchmarks.audit_scaling import main
from experiments.benchmarks.scaling_points import Sizes

AXES = {"B": (2, 4), "width": (8,)}
BASE = Sizes(B=2, T=3, width=4)


def test_points_are_measured_kept_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--kinds", "stack", "--threads", "1", "--rounds", "2", "--output", str(tmp_path)]
    assert main(arguments, AXES, BASE) == 0
    record = json.loads((tmp_path / "cpu.json").read_text())
    assert list(record["models"]) == [f"stack_{axis}_{value}" for axis, values in AXES.items() for value in values]
    point = record["models"]["stack_B_4"]
    assert point["sizes"] == {"B": 4, "T": 3, "width": 4}
    assert point["batch_size"] == 4
    assert set(point["prediction"]) == set(point["ways"]) == {"untouched", "reuse"}
    with Image.open(tmp_path / "stack_cpu.png") as image:
        assert min(image.size) > 500
    capsys.readouterr()
    assert main([*arguments, "--axes", "B"], AXES, BASE) == 0
    assert json.loads((tmp_path / "cpu.json").read_text()) == record
    assert "stack_B_4: kept" in capsys.readouterr().out
