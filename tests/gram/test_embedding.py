from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradient_disclosure.errors import BatchCouplingError
from gradient_disclosure.gram.call import ForwardState, LayerCall
from gradient_disclosure.gram.embedding import embedding_bag_terms, embedding_terms
from gradient_disclosure.gram.terms import Lookup, Term

CPU = ForwardState("cpu", None)


def loss(output: Tensor) -> Tensor:
    """Uneven in the features, with gradients that depend on the values."""
    weights = torch.cos(torch.arange(output[0].numel(), dtype=output.dtype) + 0.3).reshape(output.shape[1:])
    return ((output * weights) ** 2 + output).sum()


def one_by_one(module: nn.Module, inputs: Iterable[tuple[Tensor | None, ...]]) -> Tensor:
    """(B, V·n) gradients of the table, one example run and differentiated alone."""
    rows = [torch.autograd.grad(loss(module(*one)), module.weight)[0].to_dense().flatten() for one in inputs]
    return torch.stack(rows) if rows else torch.zeros(0, module.weight.numel())


def output_gradient(output: Tensor) -> Tensor:
    return torch.autograd.grad(loss(output), output)[0] if len(output) else torch.zeros_like(output)


def assert_term(term: Term, expected: Tensor) -> None:
    assert isinstance(term, Lookup)
    assert term.shape[0] * term.shape[1] == expected.shape[1]
    relative = 1e-10 if expected.dtype == torch.float64 else 1e-4
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(term.per_example(), expected, rtol=0, atol=relative * scale)
    wide = expected.double()
    torch.testing.assert_close(term.gram(), wide @ wide.T, rtol=0, atol=relative * scale**2 * expected.shape[1])


def terms_of_embedding(module: nn.Embedding, ids: Tensor) -> dict[str, Term]:
    return dict(embedding_terms(module, ids, output_gradient(module(ids))))


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 4),
    inner=st.lists(st.integers(0, 4), max_size=2),
    table=st.tuples(st.integers(1, 6), st.integers(1, 4)),
    padding=st.sampled_from([None, 0, -1]),
    sparse=st.booleans(),
    wide=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_embedding(
    batch: int, inner: list[int], table: tuple[int, int], padding: int | None, sparse: bool, wide: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    dtype = torch.float64 if wide else torch.float32
    module = nn.Embedding(*table, padding_idx=padding, sparse=sparse, dtype=dtype)
    ids = torch.randint(0, table[0], (batch, *inner))
    terms = terms_of_embedding(module, ids)
    assert list(terms) == ["weight"]
    expected = one_by_one(module, ((ids[i : i + 1],) for i in range(batch))).to(dtype)
    assert_term(terms["weight"], expected)


def test_embedding_takes_int32_ids() -> None:
    module = nn.Embedding(5, 2, dtype=torch.float64)
    ids = torch.tensor([[4, 0, 4], [1, 4, 3]], dtype=torch.int32)
    term = terms_of_embedding(module, ids)["weight"]
    assert_term(term, one_by_one(module, ((one[None],) for one in ids)))
    assert isinstance(term, Lookup)
    assert term.ids.dtype == torch.int64


def test_embedding_with_max_norm() -> None:
    """Rows are shortened in place before they are looked up, and no gradient flows through that."""
    torch.manual_seed(0)
    module = nn.Embedding(5, 3, max_norm=0.5, dtype=torch.float64)
    ids = torch.tensor([[4, 0, 4], [1, 4, 3]])
    before = module.weight.detach().clone()
    terms = terms_of_embedding(module, ids)
    assert not torch.equal(before, module.weight)
    assert_term(terms["weight"], one_by_one(module, ((one[None],) for one in ids)))


def test_a_frozen_table_has_no_term() -> None:
    module = nn.Embedding(5, 2, scale_grad_by_freq=True).requires_grad_(False)
    assert dict(embedding_terms(module, torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, 2))) == {}
    bag = nn.EmbeddingBag(5, 2).requires_grad_(False)
    call = LayerCall(bag, (torch.zeros(2, 3, dtype=torch.long),), {}, (torch.ones(2, 2),), CPU, 2)
    assert dict(embedding_bag_terms(call)) == {}


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_frequencies_over_the_batch_are_refused(layer: type[nn.Embedding] | type[nn.EmbeddingBag]) -> None:
    module = layer(5, 2, scale_grad_by_freq=True)
    ids = torch.zeros(2, 3, dtype=torch.long)
    e = output_gradient(module(ids))
    with pytest.raises(BatchCouplingError, match="scale_grad_by_freq"):
        if isinstance(module, nn.Embedding):
            list(embedding_terms(module, ids, e))
        else:
            list(embedding_bag_terms(LayerCall(module, (ids,), {}, (e,), CPU, 2)))


def bag_term(module: nn.EmbeddingBag, *args: Tensor, **kwargs: Tensor) -> Term:
    output = module(*args, **kwargs)
    call = LayerCall(module, args, kwargs, (output_gradient(output),), CPU, len(output))
    terms = dict(embedding_bag_terms(call))
    assert list(terms) == ["weight"]
    return terms["weight"]


def bag(mode: str, padding: int | None, last: bool = False, dtype: torch.dtype = torch.float64) -> nn.EmbeddingBag:
    """A bag over 6 rows of which some entries are equal, so that a maximum is held by several positions."""
    module = nn.EmbeddingBag(6, 3, mode=mode, padding_idx=padding, include_last_offset=last, dtype=dtype)
    with torch.no_grad():
        module.weight.copy_(torch.randn(6, 3).mul(1.5).round())
        module.weight[:, 0].copy_(torch.randn(6))
    return module


CASES = [("sum", False), ("sum", True), ("mean", False), ("max", False)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize(("mode", "weighted"), CASES)
def test_bags_of_fixed_size(mode: str, weighted: bool, padding: int | None, dtype: torch.dtype) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        module = bag(mode, padding, dtype=dtype)
        ids = torch.randint(0, 6, (5, 4))
        ids[0] = 2  # with padding_idx=2, an empty bag
        weights = torch.randn(5, 4, dtype=dtype) if weighted else None
        term = bag_term(module, ids, **({"per_sample_weights": weights} if weights is not None else {}))
        one = (None if weights is None else weights[i : i + 1] for i in range(5))
        assert_term(term, one_by_one(module, ((ids[i : i + 1], None, w) for i, w in enumerate(one))))


@settings(max_examples=80, deadline=None)
@given(
    case=st.sampled_from(CASES),
    lengths=st.lists(st.integers(0, 4), max_size=5),
    last=st.booleans(),
    padding=st.sampled_from([None, 2]),
    short=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_bags_with_offsets(
    case: tuple[str, bool],
    lengths: list[int],
    last: bool,
    padding: int | None,
    short: bool,
    seed: int,
) -> None:
    torch.manual_seed(seed)
    mode, weighted = case
    module = bag(mode, padding, last)
    integer = torch.int32 if short else torch.int64
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    ids = torch.randint(0, 6, (edges[-1],), dtype=integer)
    offsets = torch.tensor(edges if last else edges[:-1], dtype=integer)
    weights = torch.randn(len(ids), dtype=torch.float64) if weighted else None
    term = bag_term(module, ids, offsets, **({"per_sample_weights": weights} if weights is not None else {}))

    def alone(i: int) -> tuple[Tensor | None, ...]:
        inside = slice(edges[i], edges[i + 1])
        own = torch.tensor([0, lengths[i]] if last else [0], dtype=integer)
        return ids[inside], own, None if weights is None else weights[inside]

    assert_term(term, one_by_one(module, (alone(i) for i in range(len(lengths)))).double())


def test_arguments_of_a_bag_by_name() -> None:
    torch.manual_seed(0)
    module = bag("sum", None)
    ids, offsets = torch.tensor([1, 1, 5, 0]), torch.tensor([0, 3])
    weights = torch.tensor([2.0, 0.5, -1.0, 3.0], dtype=torch.float64)
    term = bag_term(module, input=ids, offsets=offsets, per_sample_weights=weights)
    torch.testing.assert_close(term.gram(), bag_term(module, ids, offsets, weights).gram())


def test_a_bag_without_gradient_has_no_term() -> None:
    call = LayerCall(bag("sum", None), (torch.tensor([[1]]),), {}, (None,), CPU, 1)
    assert dict(embedding_bag_terms(call)) == {}
