from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from experiments.benchmarks.audit_profile import main
from experiments.benchmarks.profile_groups import (
    ATTENTION,
    CONVERSION,
    GRAM,
    GROUPS,
    LAYERS,
    OPTIMIZER,
    OTHER,
    OUTSIDE,
    PER_EXAMPLE,
    SUM,
    Operation,
    group_of,
    grouped,
    recorded,
)
from tests.experiments.benchmarks.tiny import MODELS


def groups(work: object, batch: int) -> set[str]:
    """Groups of the products, sums and copies that real operations of torch are recorded as."""
    assert callable(work)
    names = {"aten::bmm", "aten::baddbmm", "aten::addmm_", "aten::mm", "aten::sum", "aten::copy_"}
    return {group_of(operation, batch) for operation in recorded(work) if operation.name in names}


def test_operations_as_torch_records_them() -> None:
    a, e = torch.randn(5, 7, 3), torch.randn(5, 7, 4)
    rows = torch.randn(5, 24)
    doubles, total = torch.empty(5, 24, dtype=torch.float64), torch.zeros(5, 5, dtype=torch.float64)
    pieces = rows.unflatten(1, (3, 8)).transpose(0, 1)
    assert groups(lambda: torch.bmm(e.transpose(1, 2), a), 5) == {PER_EXAMPLE}
    assert groups(lambda: torch.bmm(pieces, pieces.transpose(1, 2)), 5) == {GRAM}
    assert groups(lambda: total.addmm_(doubles, doubles.T), 5) <= {GRAM, OTHER}
    assert GRAM in groups(lambda: doubles @ doubles.T, 5)
    assert groups(lambda: rows @ rows.T, 5) == {LAYERS}
    assert groups(lambda: rows.double(), 5) == groups(lambda: doubles.copy_(rows), 5) == {CONVERSION}
    assert groups(lambda: torch.empty(5, 24).copy_(rows), 5) == {OTHER}
    assert groups(lambda: rows.sum(dim=0), 5) == {SUM}


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("aten::mkldnn_convolution", LAYERS),
        ("aten::convolution_backward", LAYERS),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", ATTENTION),
        ("aten::gelu", OTHER),
        ("autograd::engine::evaluate_function: AddmmBackward0", OUTSIDE),
        ("AddmmBackward0", OUTSIDE),
    ],
)
def test_names(name: str, group: str) -> None:
    assert group_of(Operation(name, 0, 1), 2) == group


def test_own_times_add_up_to_the_whole() -> None:
    second = 10**9
    operations = [
        Operation("AddmmBackward0", 0, 10 * second),
        Operation("aten::mm", 1 * second, 4 * second, [[2, 3], [3, 4]], ["float", "float"]),
        Operation("aten::sum", 2 * second, 1 * second),
        Operation("aten::sum", 6 * second, 2 * second),
        Operation("Optimizer.step#SGD.step", 11 * second, 5 * second),
        Operation("aten::sum", 12 * second, 1 * second),
    ]
    found = grouped(operations, batch=2, wall=20.0)
    assert {group: seconds for group, seconds in found.items() if seconds} == {
        LAYERS: 3.0,
        SUM: 3.0,
        OPTIMIZER: 5.0,
        OUTSIDE: 9.0,
    }
    assert sum(found.values()) == 20.0
    assert list(found) == list(GROUPS)


def test_a_profile_is_written(tmp_path: Path) -> None:
    arguments = ["--model", "gpt", "--threads", "1", "--rounds", "2", "--output", str(tmp_path)]
    assert main(arguments, MODELS) == 0
    ways = json.loads((tmp_path / "cpu.json").read_text())["models"]["gpt"]["ways"]
    assert list(ways) == ["plain", "untouched", "reuse"]
    for seconds in ways.values():
        assert set(seconds) == {*GROUPS, "wall"}
    assert ways["plain"][GRAM] == ways["plain"][CONVERSION] == 0.0
    assert ways["untouched"][GRAM] > 0
    assert ways["plain"][OPTIMIZER] > 0
    page = (tmp_path / "cpu.md").read_text()
    assert all(f"| {group} |" in page for group in GROUPS)
