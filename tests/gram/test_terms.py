from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradient_disclosure.gram.terms import Dense, Lookup, OuterProduct, Summed, Term, concatenate, merge, scaled

Losses = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Use:
    """A term, and scalar losses (one an example, linear in the parameter) that have its gradients."""

    term: Term
    losses: Losses


def by_autograd(losses: Losses, like: Term) -> Tensor:
    """(B, P) gradients of a parameter, one example at a time."""
    dtype = {Lookup: "e", OuterProduct: "e", Dense: "g"}
    part = like.parts[0]
    parameter = torch.zeros(like.shape, dtype=getattr(part, dtype[type(part)]).dtype, requires_grad=True)
    rows = []
    for loss in losses(parameter):
        (gradient,) = torch.autograd.grad(loss + 0 * parameter.sum(), parameter)
        rows.append(gradient.flatten())
    return torch.stack(rows) if rows else torch.zeros(0, parameter.numel(), dtype=parameter.dtype)


def outer_product(batch: int, positions: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Use:
    m, n = (shape[0] if shape else 1), math.prod(shape[1:])
    a, e = torch.randn(batch, positions, n, dtype=dtype), torch.randn(batch, positions, m, dtype=dtype)

    def losses(weight: Tensor) -> list[Tensor]:
        return [(F.linear(a[i], weight.reshape(m, n)) * e[i]).sum() for i in range(batch)]

    return Use(OuterProduct(a, e, shape), losses)


def lookup(batch: int, positions: int, shape: tuple[int, int], dtype: torch.dtype = torch.float64) -> Use:
    ids = torch.randint(-1, shape[0], (batch, positions))
    e = torch.randn(batch, positions, shape[1], dtype=dtype)

    def losses(table: Tensor) -> list[Tensor]:
        return [
            sum((table[ids[i, t]] @ e[i, t] for t in range(positions) if ids[i, t] >= 0), torch.zeros((), dtype=dtype))
            for i in range(batch)
        ]

    return Use(Lookup(ids, e, shape), losses)


def dense(batch: int, _positions: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Use:
    g = torch.randn(batch, math.prod(shape), dtype=dtype)
    return Use(Dense(g, shape), lambda p: [p.flatten() @ g[i] for i in range(batch)])


FORMS = {"outer product": outer_product, "lookup": lookup, "dense": dense}


def total(uses: list[Use]) -> Losses:
    return lambda p: [sum(parts[1:], parts[0]) for parts in zip(*(use.losses(p) for use in uses), strict=True)]


def assert_equal(actual: Tensor, expected: Tensor, relative: float = 1e-10) -> None:
    scale = float(expected.abs().max()) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=relative * scale, check_dtype=False)


def assert_has_gradients(term: Term, gradients: Tensor, relative: float = 1e-10) -> None:
    """Everything a term can tell, against explicit per-example gradients (B, P)."""
    batch = len(gradients)
    wide = gradients.double()
    assert term.batch_size == batch
    for chunk in (1, 7, 2_000_000):
        gram = term.gram(chunk_elements=chunk)
        assert gram.dtype == torch.float64
        assert_equal(gram, wide @ wide.T, relative)
        assert_equal(term._gram_by_blocks(chunk), wide @ wide.T, relative)
    assert_equal(term.per_example(), gradients, relative)
    weights = torch.cos(torch.arange(batch) + 0.5)
    weights[1::3] = 0.0
    summed = term.weighted_sum(weights)
    assert summed.shape == term.shape
    assert_equal(summed.flatten(), weights.to(gradients.dtype) @ gradients, relative)
    matrix = gradients.reshape(batch, term.n_rows, math.prod(term.shape[1:]))
    for start in range(term.n_rows + 1):
        for stop in range(start, term.n_rows + 1):
            assert_equal(term.rows(start, stop), matrix[:, start:stop], relative)
    assert_equal(scaled(term, weights).per_example(), weights.to(gradients.dtype)[:, None] * gradients, relative)


@settings(max_examples=60, deadline=None)
@given(
    forms=st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=4),
    batch=st.integers(0, 4),
    positions=st.lists(st.integers(0, 5), min_size=4, max_size=4),
    rows=st.integers(1, 5),
    size=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_sums_of_uses_of_any_form(
    forms: list[str], batch: int, positions: list[int], rows: int, size: int, seed: int
) -> None:
    torch.manual_seed(seed)
    uses = [FORMS[form](batch, count, (rows, size)) for form, count in zip(forms, positions, strict=False)]
    term = merge([use.term for use in uses])
    assert len(term.parts) == len(set(forms))  # equal forms become one
    assert isinstance(term, Summed) == (len(set(forms)) > 1)
    assert_has_gradients(term, by_autograd(total(uses), term))


@pytest.mark.parametrize("form", [*FORMS, "all"])
def test_float32_is_close(form: str) -> None:
    torch.manual_seed(0)
    uses = [make(3, 6, (9, 5), torch.float32) for name, make in FORMS.items() if form in (name, "all")]
    term = merge([use.term for use in uses])
    gradients = by_autograd(total(uses), term)
    assert gradients.dtype == term.per_example().dtype == torch.float32
    assert_has_gradients(term, gradients, relative=1e-4)


@pytest.mark.parametrize("shape", [(), (1,), (6,), (2, 3, 2), (1, 4, 1)])
@pytest.mark.parametrize("form", ["outer product", "dense"])
def test_parameters_of_any_number_of_axes(form: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    use = FORMS[form](3, 4, shape)  # type: ignore[arg-type]
    assert_has_gradients(use.term, by_autograd(use.losses, use.term))


@pytest.mark.parametrize("shape", [(6,), (12,), (2, 6), (4, 3), (6, 2), (1, 12)])
def test_an_outer_product_whose_sizes_are_not_those_of_the_parameter(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    a = torch.randn(3, 4, math.prod(shape) // 3, dtype=torch.float64)
    e = torch.randn(3, 4, 3, dtype=torch.float64)
    assert_has_gradients(OuterProduct(a, e, shape), torch.einsum("bti,btj->bij", e, a).flatten(1))


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(0, 6),
    positions=st.integers(0, 30),
    inputs=st.integers(1, 6),
    outputs=st.integers(1, 6),
    chunk=st.sampled_from([1, 50, 2_000_000]),
)
def test_both_ways_of_an_outer_product_agree(batch: int, positions: int, inputs: int, outputs: int, chunk: int) -> None:
    torch.manual_seed(0)
    term = outer_product(batch, positions, (outputs, inputs)).term
    assert isinstance(term, OuterProduct)
    gradients = torch.einsum("bti,btj->bij", term.e, term.a).flatten(1)
    assert_equal(term._gram_by_pairs(chunk), gradients @ gradients.T)
    assert_equal(term._gram_by_blocks(chunk), gradients @ gradients.T)


@pytest.mark.parametrize(("positions", "pairs"), [(1, True), (100, False)])
def test_the_cheaper_way_is_taken(positions: int, pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    term = outer_product(3, positions, (8, 8)).term
    dearer = "_gram_by_blocks" if pairs else "_gram_by_pairs"
    monkeypatch.setattr(OuterProduct, dearer, lambda *_: pytest.fail(f"{dearer} costs more"))
    assert term.gram().shape == (3, 3)


def test_tied_head_and_embedding_have_their_cross_terms() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[0, 3, 3], [3, 1, 0], [6, 6, 6], [2, 0, 5]])
    table = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)

    def losses(ids: Tensor, embedded: Tensor, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), ids.roll(1, 1).flatten(), reduction="none") + 0 * embedded.sum()

    embedded = F.embedding(ids, table)
    hidden = torch.tanh(embedded).cumsum(dim=1)
    logits = F.linear(hidden, table)
    e_embedded, e_logits = torch.autograd.grad(losses(ids, embedded, logits).sum(), (embedded, logits))
    term = merge([OuterProduct(hidden.detach(), e_logits, (7, 4)), Lookup(ids, e_embedded, (7, 4))])

    rows = []
    for example in ids:
        one = F.linear(torch.tanh(F.embedding(example[None], table)).cumsum(dim=1), table)
        loss = F.cross_entropy(one.flatten(0, 1), example.roll(1), reduction="sum")
        rows.append(torch.autograd.grad(loss, table)[0].flatten())
    gradients = torch.stack(rows)
    assert_has_gradients(term, gradients)
    apart = sum(part.gram() for part in term.parts)
    assert float((apart - gradients @ gradients.T).abs().max()) > 0.1 * float(gradients.square().sum(1).max())


@settings(max_examples=60, deadline=None)
@given(
    micro=st.lists(
        st.tuples(st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=3,
    ),
    seed=st.integers(0, 1000),
)
def test_micro_batches_of_any_forms_form_one_batch(micro: list[tuple[list[str], int]], seed: int) -> None:
    torch.manual_seed(seed)
    terms, gradients = [], []
    for forms, batch in micro:
        uses = [FORMS[form](batch, int(torch.randint(0, 5, ())), (4, 3)) for form in forms]
        term = merge([use.term for use in uses])
        factors = torch.rand(batch) + 0.5
        terms.append(scaled(term, factors))
        gradients.append(by_autograd(total(uses), term) * factors.double()[:, None])
    joined = concatenate(terms)
    assert len(joined.parts) == len({form for forms, _ in micro for form in forms})
    assert_has_gradients(joined, torch.cat(gradients))


def test_shorter_sequences_are_padded_with_no_id() -> None:
    joined = concatenate([lookup(1, 1, (4, 3)).term, lookup(1, 3, (4, 3)).term])
    assert isinstance(joined, Lookup)
    assert joined.ids[0, 1:].tolist() == [-1, -1]


def test_a_sum_made_by_hand_is_joined_too() -> None:
    torch.manual_seed(0)
    uses = [dense(2, 0, (4, 3)), lookup(2, 3, (4, 3)), dense(2, 0, (4, 3))]
    by_hand = Summed(tuple(use.term for use in uses))
    gradients = by_autograd(total(uses), by_hand)
    assert_has_gradients(by_hand, gradients)
    assert_has_gradients(merge([by_hand, by_hand]), 2 * gradients)
    assert_has_gradients(concatenate([by_hand, by_hand]), torch.cat([gradients, gradients]))


def test_the_first_use_keeps_its_gradients() -> None:
    term = merge([dense(2, 0, (4, 3)).term, lookup(2, 3, (4, 3)).term])
    before = term.parts[0].per_example().clone()
    first, second = term.gram(5), term.gram()
    torch.testing.assert_close(first, second)
    assert torch.equal(term.parts[0].per_example(), before)


def test_a_lookup_of_wider_precision_is_not_rounded_by_the_head() -> None:
    torch.manual_seed(0)
    head, embedding = outer_product(3, 2, (5, 4), torch.float32).term, lookup(3, 4, (5, 4)).term
    expected = head.per_example().double() + embedding.per_example()
    assert_equal(merge([embedding, head]).per_example(), expected, 1e-12)


class Largest(TorchDispatchMode):
    """Number of entries of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.entries = max(self.entries, tensor.numel())
        return result


def largest_tensor(compute: Callable[[], Tensor]) -> int:
    with Largest() as largest:
        compute()
    return largest.entries


def test_no_more_is_formed_at_a_time_than_asked_for() -> None:
    head, embedding = outer_product(3, 1, (60, 30)).term, lookup(3, 5, (60, 30)).term
    assert isinstance(head, OuterProduct)
    spread = Lookup(torch.arange(3 * 20).reshape(3, 20), torch.randn(3, 20, 8), (60, 8))
    several = outer_product(8, 16, (4, 4)).term
    assert isinstance(several, OuterProduct)
    whole = 3 * 60 * 30
    assert largest_tensor(lambda: head._gram_by_blocks(2 * whole)) == whole  # the measure itself sees the whole
    assert largest_tensor(lambda: head._gram_by_blocks(500)) <= 500
    assert largest_tensor(lambda: merge([head, embedding]).gram(600)) <= 600
    assert largest_tensor(lambda: spread.gram(500)) <= 500 < 3 * 60 * 8
    assert largest_tensor(lambda: several._gram_by_pairs(512)) <= 1024 < (8 * 16) ** 2
    wide = Dense(torch.randn(3, 10_000), (10_000,))
    assert largest_tensor(lambda: wide.gram(500)) <= 500


def test_a_huge_table_is_never_formed() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[5, 2**39, 5], [2**39, 7, -1]])
    e = torch.randn(2, 3, 4, dtype=torch.float64)
    summed = e[0, 0] + e[0, 2]
    cross = e[0, 1] @ e[1, 0]
    expected = torch.stack(
        [
            torch.stack([summed @ summed + e[0, 1] @ e[0, 1], cross]),
            torch.stack([cross, e[1, :2].square().sum()]),
        ]
    )
    torch.testing.assert_close(Lookup(ids, e, (2**40, 4)).gram(), expected)


@pytest.mark.parametrize("form", [*FORMS, "all", "pairs"])
def test_float32_gradients_have_a_float64_gram(form: str) -> None:
    """Two almost equal examples: products summed in float32 would leave a smallest eigenvalue of about ±1e-7."""
    torch.manual_seed(0)
    names = {"pairs": ["outer product"], "all": list(FORMS)}.get(form, [form])
    terms = []
    for name in names:
        single = scaled(FORMS[name](1, 40, (50, 60), torch.float32).term, torch.tensor([3.0]))
        terms.append(concatenate([single, scaled(single, torch.tensor([1 + 2**-12]))]))
    term = merge(terms)
    gram = term._gram_by_pairs() if form == "pairs" else term.gram()  # type: ignore[attr-defined]
    gradients = term.per_example().double()
    assert abs(float(torch.linalg.eigvalsh(gram / gram.trace())[0])) < 1e-12
    if form != "pairs":
        assert_equal(gram, gradients @ gradients.T, 1e-12)


@pytest.mark.parametrize("form", [*FORMS, "all"])
def test_weight_zero_leaves_out_even_a_nan(form: str) -> None:
    torch.manual_seed(0)
    terms = [make(3, 4, (5, 2)).term for name, make in FORMS.items() if form in (name, "all")]
    spoiled = [scaled(term, torch.tensor([1.0, float("nan"), 1.0])) for term in terms]
    weights = torch.tensor([2.0, 0.0, -1.0])
    expected = sum(term.weighted_sum(weights) for term in terms)
    torch.testing.assert_close(merge(spoiled).weighted_sum(weights), expected)
