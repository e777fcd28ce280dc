"""Two gloo processes under Lightning against one process, and against a hand-written audit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradient_disclosure import GradientUniqueness
from gradient_disclosure.callbacks.across_ranks import OneProcess, refuse_equal_batches
from gradient_disclosure.callbacks.audit_options import keep_ranks
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.gram.reference import leave_one_out_gnq, per_example_gradients
from gradient_disclosure.ledger import DisclosureLedger, Exposure
from gradient_disclosure.scores.bits import Sampling, paper_bits
from tests.callbacks.ranks_worker import BY_INDEX, PER_RANK, N, ledger_of, net
from tests.processes import run_processes
from tests.toy import ToyModule, examples, fit, loader

LAMBDA = 1e-2


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_processes("tests.callbacks.ranks_worker:everything", tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def ddp(both: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rank["ddp"] for rank in both]


@pytest.fixture(scope="module")
def fsdp(both: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [rank["fsdp"] for rank in both]


def one_process(scope: str = "batch", **options: Any) -> dict[str, Any]:
    """The same global batches in one process."""
    audit = GradientUniqueness(**BY_INDEX, scope=scope)
    fit(ToyModule(net=net()), loader(N, 2 * PER_RANK, torch.float64), audit, epochs=2, **options)
    return ledger_of(audit)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["n_steps"] == expected["n_steps"]
    assert found["rate"] == expected["rate"]
    assert found["attrs"] == expected["attrs"]
    for name, column in expected["columns"].items():
        torch.testing.assert_close(found["columns"][name], column, rtol=1e-7, atol=1e-9, equal_nan=True)
    for name, value in expected["means"].items():
        assert found["means"][name] == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize(("name", "scope"), [("global", "batch"), ("universe", "universe_proxy")])
def test_global_ledger_is_that_of_one_process(ddp: list[dict[str, Any]], name: str, scope: str) -> None:
    expected = one_process(scope)
    assert len(expected["columns"]["index"]) == N
    for rank in ddp:
        assert_same(rank[name], expected)


def test_accumulated_steps(ddp: list[dict[str, Any]]) -> None:
    for rank in ddp:
        assert_same(rank["accumulated"], one_process(accumulate_grad_batches=2))


def steps_by_hand(ranks: int) -> list[tuple[Tensor, list[tuple[Tensor, Tensor]]]]:
    """Per step the ids of the global batch and, for each group scored together, (ids, its per-example gradients)."""
    x, y, index = examples(N, torch.float64)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = []
    for _ in range(2):
        for ids in index.split(2 * PER_RANK):
            groups = [ids[rank::ranks] for rank in range(ranks)]
            found = []
            for group in groups:
                a, b = x[group], y[group]
                g = per_example_gradients(
                    model, lambda m, i, a=a, b=b: F.cross_entropy(m(a[i : i + 1]), b[i : i + 1]), len(group)
                )
                found.append((group, g))
            steps.append((ids, found))
            optimizer.zero_grad()
            F.cross_entropy(model(x[ids]), y[ids]).backward()
            optimizer.step()
    return steps


def test_per_rank_scores_are_those_of_the_blocks(ddp: list[dict[str, Any]]) -> None:
    """GNQ, and bits: the sum is of half a batch, so p is half as large where units are changed; r is not."""
    total, bits = torch.zeros(N, dtype=torch.float64), torch.zeros(N, dtype=torch.float64)
    proxy = torch.zeros(N, dtype=torch.float64)
    rate, p = 0.25, 0.25 / 2 / 2
    for _, groups in steps_by_hand(2):
        for ids, g in groups:
            scores = leave_one_out_gnq(g, LAMBDA)
            total[ids] += scores
            bits[ids] += paper_bits(p * scores, Sampling(rate)) / rate
            proxy[ids] += p * leave_one_out_gnq(g, LAMBDA * p)
    for rank in ddp:
        found = rank["per_rank"]
        assert found["attrs"]["across_ranks"] == "per_rank"
        assert found["rate"] == rate
        torch.testing.assert_close(found["columns"]["gnq_total"], total, rtol=1e-7, atol=0)
        torch.testing.assert_close(found["columns"]["bits_paper_uncapped"], bits, rtol=1e-7, atol=0)
        universe = rank["per_rank universe"]["columns"]["gnq_total"]
        torch.testing.assert_close(universe, proxy, rtol=1e-7, atol=0)
        assert not torch.allclose(found["columns"]["gnq_total"], rank["global"]["columns"]["gnq_total"], rtol=1e-3)


@pytest.mark.parametrize("name", ["global", "per_rank"])
def test_every_rank_has_the_ledger_of_all_once(ddp: list[dict[str, Any]], name: str) -> None:
    first, second = ddp[0][name]["columns"], ddp[1][name]["columns"]
    for column, values in first.items():
        assert torch.equal(values.nan_to_num(), second[column].nan_to_num())
    assert first["index"].tolist() == list(range(N))
    assert first["n_drawn"].tolist() == [2.0] * N  # two epochs


@pytest.mark.parametrize("name", ["global", "per_rank"])
def test_a_resumed_run_counts_nothing_twice(ddp: list[dict[str, Any]], name: str) -> None:
    for rank in ddp:
        assert_same(rank[f"resumed {name}"], rank[name])


def test_an_example_that_the_sampler_repeats_is_one_example(ddp: list[dict[str, Any]]) -> None:
    """Three examples on two ranks of two: example 0 comes twice, and adds twice its gradient."""
    x, y, _ = examples(3, torch.float64)
    g = per_example_gradients(net(), lambda m, i: F.cross_entropy(m(x[i : i + 1]), y[i : i + 1]), 3)
    g[0] *= 2
    for rank in ddp:
        found = rank["repeated"]["columns"]
        assert found["n_drawn"].tolist() == [1.0] * 3
        torch.testing.assert_close(found["gnq_total"], leave_one_out_gnq(g, LAMBDA), rtol=1e-7, atol=0)
        torch.testing.assert_close(found["squared_norm_total"], g.square().sum(1), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["audited weights", "per_rank weights"])
def test_training_is_bitwise_the_same(ddp: list[dict[str, Any]], name: str) -> None:
    for rank in ddp:
        assert all(torch.equal(a, b) for a, b in zip(rank["plain weights"], rank[name], strict=True))


def test_fully_sharded_training(ddp: list[dict[str, Any]], fsdp: list[dict[str, Any]]) -> None:
    expected = one_process()
    for rank, of_ddp in zip(fsdp, ddp, strict=True):
        assert_same(rank["global"], expected)
        assert_same(rank["per_rank"], of_ddp["per_rank"])
        assert all(torch.equal(a, b) for a, b in zip(rank["plain weights"], rank["audited weights"], strict=True))


def test_refusals(ddp: list[dict[str, Any]]) -> None:
    for rank in ddp:
        assert rank["censor"].startswith("UnsupportedTrainingError: 2 processes train together, and a censor")
        for name in ("no sampler", "no sampler per_rank"):
            assert "DistributedSampler" in rank[name]
            assert rank[name].startswith("UnsupportedTrainingError")
    assert ddp[0]["wrong ids"].startswith("DisclosureError: rank 1 stopped: example_ids gave (1,)")
    assert ddp[1]["wrong ids"].startswith("ExampleIdError")


def test_one_process_has_nothing_to_exchange() -> None:
    assert OneProcess().any(True)
    assert OneProcess().ids(lambda: torch.tensor([3])).tolist() == [3]
    refuse_equal_batches([torch.tensor([1, 2])])
    refuse_equal_batches([torch.tensor([1]), torch.tensor([1])])  # a sampler's repetition at the end of an epoch


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ValueError, match=r"across_ranks 'local'.*global, per_rank"):
        GradientUniqueness(across_ranks="local")


def test_scores_among_other_examples_do_not_add_up() -> None:
    ledger = DisclosureLedger(Exposure(Sampling(0.1), poisson=False))
    ledger.record(torch.tensor([1]), gnq=torch.ones(1), squared_norms=torch.ones(1), step=0)
    keep_ranks(ledger, 1)
    with pytest.raises(UnsupportedTrainingError, match="do not add up"):
        keep_ranks(ledger, 2)
