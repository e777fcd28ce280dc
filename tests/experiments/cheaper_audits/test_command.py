from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.cheaper_audits import __main__ as command
from experiments.cheaper_audits.scored import Scores, refuse_another_trajectory
from experiments.cheaper_audits.tasks import TASKS, Task, quick
from experiments.cheaper_audits.variants import STRIDES, variants
from gradient_disclosure.errors import DisclosureError


def test_every_part_of_a_task_can_be_made_and_named() -> None:
    for task in TASKS.values():
        module = task.network(task.load(pool_size=100, test_size=10).spec) if "digits" in task.name else None
        if module is not None:
            chosen = variants(module)
            assert [v.every_n_steps for v in chosen[1:5]] == list(STRIDES)
            assert chosen[0].layers is None
            assert all(v.layers for v in chosen[5:])
        assert quick(task).epochs < task.epochs


def test_it_writes_tables_a_figure_and_json_and_reads_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def tiny(task: Task) -> Task:
        return replace(quick(task), pool=140, seeds=(0,), timing_blocks=1)

    chosen = ("full", "every_20_steps", "last_layer")
    monkeypatch.setattr(command, "quick", tiny)
    monkeypatch.setattr(command, "variants", lambda module: [v for v in variants(module) if v.name in chosen])
    arguments = ["--quick", "--tasks", "digits_mlp", "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert command.main(arguments) == 0
    first = json.loads((tmp_path / "out" / "results.json").read_text())
    audits = first["tasks"]["digits_mlp"]["audits"]
    assert audits["full"]["gnq_total"]["spearman"] == 1.0
    assert audits["full"]["coverage"] == 1.0
    assert audits["last_layer"]["coverage"] == pytest.approx(650 / (64 * 128 + 128 + 128 * 64 + 64 + 650))
    layer, seldom = audits["last_layer"]["gnq_total"], audits["every_20_steps"]["gnq_per_draw"]
    assert -1 <= layer["spearman_low"] < layer["spearman"] < 1
    assert seldom["unscored_fraction"] > 0  # 4 steps: at most one of them is audited
    assert (seldom["spearman"] is None) is (seldom["unscored_fraction"] == 1.0)
    for name in ("tables.md", "cheaper_audits.png"):
        assert (tmp_path / "out" / name).stat().st_size > 500
    monkeypatch.setattr(command, "costs", None)  # what is there is not timed again
    assert command.main(arguments) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text())["tasks"] == first["tasks"]


def test_two_trainings_are_never_compared() -> None:
    zeros = torch.zeros(3).numpy()
    full = Scores(zeros, zeros, zeros, zeros, 1.0, torch.zeros(2))
    refuse_another_trajectory(full, replace(full, coverage=0.5), "some")
    with pytest.raises(DisclosureError, match="some saw another training"):
        refuse_another_trajectory(full, replace(full, weights=torch.tensor([0.0, 1e-7])), "some")
