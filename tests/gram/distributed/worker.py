"""What each of two processes runs; the tests compare what they return."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
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


def everything(folder: Path) -> dict[str, Any]:
    join()
    return {"ddp": data_parallel(), "odd": odd_ones(), "fsdp": fully_sharded()}


def data_parallel() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, case in CASES.items():
        for verify in (True, False):
            module = case.module()
            found[f"{name}, verify={verify}"] = observed(case, DistributedDataParallel(module), module, verify=verify)
    return found


def odd_ones() -> dict[str, Any]:
    """Passes that differ from rank to rank, or are not plain."""
    found: dict[str, Any] = {}
    rank = dist.get_rank()

    partial = Case(Partial, vectors(3, 4))
    module = partial.module()
    module.uses_second = rank == 0
    wrapped = DistributedDataParallel(module, find_unused_parameters=True)
    found["unused on one rank"] = observed(partial, wrapped, module)
    found["wrapper watched"] = observed(CASES["mlp"], *[DistributedDataParallel(CASES["mlp"].module())] * 2)

    module = CASES["mlp"].module()
    wrapped = DistributedDataParallel(module)
    found["reuse"] = observed(CASES["mlp"], wrapped, module, mode="reuse", verify=False)
    module.zero_grad()
    found["sum"] = by_sum(wrapped, module)
    found["accumulated"] = accumulated(module)
    found["local gradients"] = local_gradients()
    found["empty rank"] = empty_rank()
    found["failure"] = failure()
    found["another module"] = another_module()
    found["refused"] = refused()
    return found


def by_sum(wrapped: nn.Module, module: nn.Module) -> Tensor:
    case = CASES["mlp"]
    x, y = case.batches()[dist.get_rank()]
    with GradientGram(module, "sum", ranks=GlobalBatch()) as gram:
        (case.losses(wrapped, x, y).sum() * 8).backward()
        return gram.gram(loss_scale=8.0)


def accumulated(module: nn.Module) -> Tensor:
    """Two passes a step, of unequal size, on both ranks; the first without a reduction."""
    case = CASES["unequal batches"]
    x, y = case.batches()[dist.get_rank()]
    wrapped = DistributedDataParallel(module)
    with GradientGram(module, ranks=GlobalBatch(), micro_batches=2) as gram:
        with wrapped.no_sync():
            case.losses(wrapped, x[:1], y[:1]).mean().backward()
        case.losses(wrapped, x[1:], y[1:]).mean().backward()
        return gram.gram()


def local_gradients() -> dict[str, Tensor]:
    """What a hook on a parameter sees, what ``.grad`` is afterwards, and both ranks' own gradients."""
    case = CASES["mlp"]
    module = case.module()
    x, y = case.batches()[dist.get_rank()]
    own = torch.autograd.grad(case.losses(module, x, y).mean(), list(module.parameters()))[0]
    wrapped = DistributedDataParallel(module)
    seen: list[Tensor] = []
    first = next(module.parameters())
    first.register_hook(lambda g: seen.append(g.clone()))
    case.losses(wrapped, x, y).mean().backward()
    return {"own": own, "hook": seen[0], "grad": first.grad.detach().clone()}


def empty_rank() -> Tensor:
    """One rank has no example at all."""
    case = CASES["mlp"]
    module = case.module()
    x, y = case.batches()[dist.get_rank()]
    n = 0 if dist.get_rank() else 4
    with GradientGram(module, ranks=GlobalBatch()) as gram:
        case.losses(module, x[:n], y[:n]).sum().backward()
        return gram.gram()


def failure() -> str:
    """A layer's gradients are changed on rank 1 alone: both ranks are told."""
    case = CASES["mlp"]
    module = case.module()
    if dist.get_rank() == 1:
        module[2].weight.register_hook(lambda g: 2 * g)
    try:
        observed(case, module, module)
    except DisclosureError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def another_module() -> str:
    case = Case(mlp if dist.get_rank() else Partial, vectors(2, 2))
    module = case.module()
    try:
        observed(case, module, module)
    except DisclosureError as error:
        return str(error)
    return "no error"


class Stack(nn.Module):
    """Blocks, some of which get a parameter-made tensor as an input, and one layer that is sharded on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(5, 6)
        self.shift = nn.Parameter(torch.randn(6))
        self.blocks = nn.ModuleList(ShiftedBlock() for _ in range(2))
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, shift = self.entry(x), self.shift.exp()
        for block in self.blocks:
            x = block(x, shift)
        return self.head(x)


class ShiftedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.gain = nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        return x + (self.inner(x) * self.gain + shift).tanh()


SHARDED_WAYS = [(True, "untouched"), (False, "untouched"), (True, "reuse")]
"""(reshard_after_forward, mode)"""
SHARDED = CASES | {"inputs from parameters": Case(Stack, vectors(3, 4))}


def shard_root(module: nn.Module, **options: Any) -> None:
    fully_shard(module, **options)


def shard_blocks(module: nn.Module, **options: Any) -> None:
    """Each block, or each layer where there are none, and the root with what is left."""
    blocks = getattr(module, "blocks", None) or (module if isinstance(module, nn.Sequential) else [])
    for block in blocks:
        if any(True for _ in block.parameters()):
            fully_shard(block, **options)
    fully_shard(module, **options)


def fully_sharded() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {}
    for name, case in SHARDED.items():
        for shard in (shard_root, shard_blocks):
            for reshard, mode in SHARDED_WAYS:
                module = case.module()
                shard(module, mesh=mesh, reshard_after_forward=reshard)
                options: dict[str, Any] = {"verify": mode == "untouched", "mode": mode}
                once = observed(case, module, module, **options)
                again = observed(case, module, module, **options)  # the gathered parameters are known from before
                found[f"{name}, {shard.__name__}, {reshard}, {mode}"] = torch.stack([once, again])
    return found


def refused() -> dict[str, str]:
    """Ways to hold parameters that are not followed."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    mixed = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("data", "tensor"))
    both = parallelize_module(mlp(), mixed["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    modules = {
        "older": FullyShardedDataParallel(mlp(), device_id=torch.device("cpu")),
        "tensor": parallelize_module(mlp(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}),
        "both": fully_shard(both, mesh=mixed["data"]),
    }
    return {name: refusal(module) for name, module in modules.items()}


def refusal(module: nn.Module) -> str:
    try:
        with GradientGram(module):
            module(torch.randn(3, 5)).sum().backward()
    except DisclosureError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
