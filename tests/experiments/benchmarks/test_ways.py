from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from experiments.benchmarks import ways_pairs
from experiments.benchmarks.products import deviation, gram_of
from experiments.benchmarks.way import CannotRunError
from experiments.benchmarks.ways import WAYS
from experiments.benchmarks.ways_ours import PLAIN
from experiments.benchmarks.ways_pairs import pairs_gram
from experiments.benchmarks.workload import Workload, without_dropout
from gradient_disclosure.gram.reference import per_example_gradients
from tests.experiments.benchmarks.tiny import MODELS, workload
from tests.gram.oracle import footprint

EXACT = [name for name, way in WAYS.items() if way.exact]


def one_by_one(work: Workload) -> Tensor:
    """Gram of gradients taken with a batch of one example each, in float64."""
    gradients = per_example_gradients(work.module, lambda _, i: work.loss(slice(i, i + 1)), work.batch_size).double()
    return gradients @ gradients.T


def observe(name: str, work: Workload) -> Tensor:
    with WAYS[name].session(work) as step:
        found = step()
    assert found is not None
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", EXACT)
def test_exact_ways_give_the_gram_and_the_gradient(name: str, model: str) -> None:
    work = workload(model)
    before = footprint(work.module)
    with without_dropout(work.module):
        expected = one_by_one(work)
        work.loss().backward()
        gradients = [p.grad.clone() for p in work.parameters]
        work.optimizer.zero_grad()
        if (name, model) == ("opacus", "gpt"):
            with pytest.raises(CannotRunError, match=r"wpe\.weight has 1 example"):
                observe(name, work)
        else:
            assert deviation(observe(name, work), expected) < 1e-5
            for parameter, gradient in zip(work.parameters, gradients, strict=True):
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert footprint(work.module) == before


@pytest.mark.parametrize("name", EXACT)
def test_ways_still_run_with_dropout_and_change_nothing_of_it(name: str) -> None:
    work = workload("cnn")
    with without_dropout(work.module):
        expected = one_by_one(work)
    found = observe(name, work)
    assert work.module[5].p == 0.5
    assert deviation(found, expected) > 1e-2


@pytest.mark.parametrize("model", MODELS)
def test_the_partial_kernel_is_another_matrix_and_says_so(model: str) -> None:
    work = workload(model)
    with without_dropout(work.module):
        assert WAYS["partial"].exact is False
        assert deviation(observe("partial", work), one_by_one(work)) > 1e-2


def test_the_partial_kernel_is_that_of_the_output_weight_where_there_are_no_positions() -> None:
    work = workload("mlp")
    found = observe("partial", work)
    weight = work.module[2].weight
    rows = [torch.autograd.grad(work.loss(slice(i, i + 1)), weight)[0].flatten() for i in range(work.batch_size)]
    gradients = torch.stack(rows).double()
    assert deviation(found, gradients @ gradients.T) < 1e-5


def test_the_partial_kernel_flattens_positions() -> None:
    work = workload("gpt")
    with without_dropout(work.module):
        found = observe("partial", work)
        logits = work.module(work.inputs).logits
        (e,) = torch.autograd.grad(work.loss_of(type("Output", (), {"logits": logits})(), work.targets), logits)
        a = work.module.transformer(work.inputs).last_hidden_state
    e = e * work.batch_size
    expected = torch.zeros(work.batch_size, work.batch_size, dtype=torch.float64)
    for i, j in itertools.product(range(work.batch_size), repeat=2):
        expected[i, j] = (a[i] * a[j]).sum() * (e[i] * e[j]).sum()
    assert deviation(found, expected) < 1e-5


@pytest.mark.parametrize(("rows", "entries"), [(256, 8_000_000), (1, 40), (8, 100)])
@pytest.mark.parametrize("positions", [1, 4])
def test_pairs_of_positions(positions: int, rows: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways_pairs, "ROWS", rows)
    monkeypatch.setattr(ways_pairs, "ENTRIES", entries)
    torch.manual_seed(0)
    a, e = torch.randn(5, positions, 3), torch.randn(5, positions, 2)
    gradients = torch.einsum("btm,btn->bmn", e, a).flatten(1).double()
    torch.testing.assert_close(pairs_gram(a, e), gradients @ gradients.T, rtol=1e-5, atol=1e-5)


def test_pairs_that_are_not_used_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways_pairs, "observed", lambda work: torch.zeros(2, 2))
    with pytest.raises(CannotRunError, match="no longer asks"):
        observe("pairs", workload("mlp"))


def test_products_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmarks.products.COLUMNS", 3)
    torch.manual_seed(0)
    rows = [torch.randn(4, 2, 5), torch.randn(4, 1)]
    flat = torch.cat([row.flatten(1) for row in rows], dim=1).double()
    torch.testing.assert_close(gram_of(rows), flat @ flat.T, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="no gradients"):
        gram_of([])


def test_torch_func_a_few_examples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.benchmarks.ways_rows.LARGE", 0)
    monkeypatch.setattr("experiments.benchmarks.ways_rows.FEW", 2)
    work = workload("mlp")
    assert deviation(observe("torch_func", work), one_by_one(work)) < 1e-5


def test_the_plain_step_gives_no_matrix() -> None:
    with PLAIN.session(workload("mlp")) as step:
        assert step() is None
