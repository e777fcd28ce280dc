from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gram.distributed.cases import CASES, Case, Partial, vectors
from tests.gram.distributed.worker import SHARDED, SHARDED_WAYS
from tests.processes import run_processes


def one_at_a_time(case: Case, before: Callable[[Any, int], None] = lambda module, rank: None) -> Tensor:
    """Gram of all ranks' examples by autograd, each example on its own."""
    module = case.module()
    rows = []
    for rank, (x, y) in enumerate(case.batches()):
        before(module, rank)
        for i in range(len(x)):
            module.zero_grad(set_to_none=True)
            case.losses(module, x[i : i + 1], y[i : i + 1]).sum().backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
            rows.append(torch.cat([g.flatten() for g in gradients]))
    g = torch.stack(rows)
    return g @ g.T


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes("tests.gram.distributed.worker:everything", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def data_parallel(both: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rank["ddp"] for rank in both]


@pytest.fixture(scope="module")
def odd_ones(both: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rank["odd"] for rank in both]


@pytest.fixture(scope="module")
def fully_sharded(both: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rank["fsdp"] for rank in both]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_gram_is_that_of_the_whole_batch(data_parallel: list[dict[str, Any]], name: str, verify: bool) -> None:
    expected = one_at_a_time(CASES[name])
    for rank in data_parallel:
        torch.testing.assert_close(rank[f"{name}, verify={verify}"], expected, rtol=1e-9, atol=1e-9)


def test_a_parameter_may_be_unused_on_one_rank(odd_ones: list[dict[str, Any]]) -> None:
    def before(module: Any, rank: int) -> None:
        module.uses_second = rank == 0

    expected = one_at_a_time(Case(Partial, vectors(3, 4)), before)
    for rank in odd_ones:
        torch.testing.assert_close(rank["unused on one rank"], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["wrapper watched", "reuse", "sum"])
def test_other_ways_to_observe(odd_ones: list[dict[str, Any]], name: str) -> None:
    for rank in odd_ones:
        torch.testing.assert_close(rank[name], one_at_a_time(CASES["mlp"]), rtol=1e-9, atol=1e-9)


def test_accumulated_micro_batches(odd_ones: list[dict[str, Any]]) -> None:
    for rank in odd_ones:
        torch.testing.assert_close(rank["accumulated"], one_at_a_time(CASES["unequal batches"]), rtol=1e-9, atol=1e-9)


def test_a_rank_without_examples(odd_ones: list[dict[str, Any]]) -> None:
    for rank in odd_ones:
        gram = one_at_a_time(CASES["mlp"])[:4, :4]
        torch.testing.assert_close(rank["empty rank"], gram * 16, rtol=1e-9, atol=1e-9)  # a sum was taken for a mean


def test_parameter_hooks_see_the_gradients_before_they_are_averaged(odd_ones: list[dict[str, Any]]) -> None:
    """What ``verify`` compares with; found, not assumed."""
    seen = [rank["local gradients"] for rank in odd_ones]
    assert not torch.allclose(seen[0]["own"], seen[1]["own"])
    mean = (seen[0]["own"] + seen[1]["own"]) / 2
    for rank in seen:
        torch.testing.assert_close(rank["hook"], rank["own"], rtol=1e-12, atol=1e-15)
        torch.testing.assert_close(rank["grad"], mean, rtol=1e-12, atol=1e-15)


def test_all_ranks_stop_where_one_does(odd_ones: list[dict[str, Any]]) -> None:
    assert "rank 1 stopped" in odd_ones[0]["failure"]
    assert odd_ones[1]["failure"].startswith("IncompleteGramError: the per-example gradients of '2.weight'")


def test_different_modules_are_refused(odd_ones: list[dict[str, Any]]) -> None:
    assert all("different modules" in rank["another module"] for rank in odd_ones)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("older", "Use torch.distributed.fsdp.fully_shard instead"),
        ("tensor", "0.weight, 0.bias, 2.weight.*tensor parallelism"),
        ("both", "0.weight.*tensor parallelism"),
    ],
)
def test_parameters_that_are_not_followed_are_refused(odd_ones: list[dict[str, Any]], name: str, message: str) -> None:
    for rank in odd_ones:
        assert re.search(f"^UnsupportedLayerError: .*{message}", rank["refused"][name])


@pytest.mark.parametrize(("reshard", "mode"), SHARDED_WAYS)
@pytest.mark.parametrize("shard", ["shard_root", "shard_blocks"])
@pytest.mark.parametrize("name", SHARDED)
def test_fully_shard(fully_sharded: list[dict[str, Any]], name: str, shard: str, reshard: bool, mode: str) -> None:
    expected = one_at_a_time(SHARDED[name])
    for rank in fully_sharded:
        for found in rank[f"{name}, {shard}, {reshard}, {mode}"]:
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
