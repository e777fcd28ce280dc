"""What each of two processes runs; the tests compare what they return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradient_disclosure import GradientGram
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.gram.distributed.global_batch import GlobalBatch
from tests.gram.distributed.cases import CASES, Case, Partial, mlp, vectors
from tests.processes import join


def observed(case: Case, wrapped: nn.Module, watched: nn.Module, **options: Any) -> Tensor:
    x, y = case.batches()[dist.get_rank()]
    with GradientGram(watched, ranks=GlobalBatch(), **options) as gram:
        case.losses(wrapped, x, y).mean().backward()
        result = gram.gram()
    assert gram.coverage == 1.0
    assert gram.verified == options.get("verify", True)
    return result


def data_parallel(folder: Path) -> dict[str, Any]:
    join()
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        for verify in (True, False):
            module = case.module()
            found[f"{name}, verify={verify}"] = observed(case, DistributedDataParallel(module), module, verify=verify)
    return found
