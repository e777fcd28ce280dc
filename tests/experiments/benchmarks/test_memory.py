from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from experiments.benchmarks.memory import available_bytes, bytes_of, peak_bytes, peak_growth
from experiments.benchmarks.timing import step
from experiments.benchmarks.ways import WAYS
from experiments.benchmarks.ways_ours import PLAIN
from experiments.benchmarks.workload import Workload

MB = 1_000_000


def test_what_is_freed_counts_no_longer() -> None:
    def work() -> None:
        first = torch.empty(40 * MB, dtype=torch.uint8)
        second = torch.empty(20 * MB, dtype=torch.uint8)
        del first
        third = torch.empty(30 * MB, dtype=torch.uint8)
        del second, third

    assert peak_growth(work) == 60 * MB


def test_what_lived_before_does_not_grow() -> None:
    before = torch.zeros(10 * MB, dtype=torch.uint8)
    assert peak_growth(lambda: before.add_(1)) < 100  # the number itself is a tensor


def test_storages_count_once() -> None:
    x = torch.zeros(100)
    assert bytes_of([x, x[:50], torch.zeros(10, dtype=torch.float64)]) == 480


def wide(batch: int, width: int) -> Workload:
    module = nn.Sequential(nn.Linear(width, width, bias=False))
    optimizer = SGD(module.parameters(), lr=0.1, momentum=0.9)
    return Workload(module, torch.randn(batch, width), torch.zeros(batch, dtype=torch.long), optimizer)


def peak(name: str, work: Workload) -> int:
    way = {**WAYS, "plain": PLAIN}[name]
    with way.session(work) as observe:
        step(observe, work)
        return peak_bytes(lambda: step(observe, work), work)


def test_a_step_holds_weights_momentum_and_gradient_and_rows_hold_one_gradient_an_example() -> None:
    batch, width = 8, 256
    weight = 4 * width**2
    plain = peak("plain", wide(batch, width))
    assert 3 * weight < plain < 3.5 * weight
    rows = peak("one_by_one", wide(batch, width))
    assert plain + (batch - 1) * weight < rows < plain + (batch + 2) * weight
    assert peak("untouched", wide(batch, width)) < 1.1 * plain
    assert peak("plain", wide(batch, width)) == plain


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_free_memory_of_a_gpu() -> None:
    assert available_bytes(torch.device("cuda")) > 0


def test_free_memory() -> None:
    assert MB < available_bytes(torch.device("cpu")) < 1e14
