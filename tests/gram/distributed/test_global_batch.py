from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gram.distributed.cases import CASES, Case
from tests.processes import run_processes

WORKER = "tests.gram.distributed.worker"


def one_at_a_time(case: Case) -> Tensor:
    """Gram of all ranks' examples by autograd, each example on its own."""
    module = case.module()
    rows = []
    for x, y in case.batches():
        for i in range(len(x)):
            module.zero_grad(set_to_none=True)
            case.losses(module, x[i : i + 1], y[i : i + 1]).sum().backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
            rows.append(torch.cat([g.flatten() for g in gradients]))
    g = torch.stack(rows)
    return g @ g.T


@pytest.fixture(scope="module")
def data_parallel(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes(f"{WORKER}:data_parallel", tmp_path_factory.mktemp("ddp"))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_gram_is_that_of_the_whole_batch(data_parallel: list[dict[str, Any]], name: str, verify: bool) -> None:
    expected = one_at_a_time(CASES[name])
    for rank in data_parallel:
        torch.testing.assert_close(rank[f"{name}, verify={verify}"], expected, rtol=1e-9, atol=1e-9)
