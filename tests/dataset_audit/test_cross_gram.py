from __future__ import annotations

import pytest
import torch

from gradient_disclosure.dataset_audit.cross_gram import compact, cross_gram, cross_products, examples_of, squared_norms
from gradient_disclosure.gram.terms import Dense, Lookup, OuterProduct, Term, merge


def outer(b: int, t: int, n: int = 5, m: int = 4) -> OuterProduct:
    return OuterProduct(torch.randn(b, t, n), torch.randn(b, t, m), (m, n))


def lookup(b: int, t: int) -> Lookup:
    return Lookup(torch.randint(-1, 4, (b, t)), torch.randn(b, t, 5), (4, 5))


def dense(b: int) -> Dense:
    return Dense(torch.randn(b, 20), (4, 5))


PAIRS = {
    "one position": lambda: (outer(6, 1), outer(3, 1)),
    "pairs of positions": lambda: (outer(6, 2, 50, 40), outer(3, 3, 50, 40)),
    "many positions": lambda: (outer(6, 30), outer(3, 20)),
    "no position": lambda: (outer(6, 0), outer(3, 2)),
    "lookups": lambda: (lookup(6, 3), lookup(4, 2)),
    "only padding": lambda: (lookup(6, 3), Lookup(torch.full((4, 2), -1), torch.randn(4, 2, 5), (4, 5))),
    "dense": lambda: (dense(6), dense(3)),
    "outer and dense": lambda: (outer(6, 3), dense(2)),
    "tied": lambda: (merge([outer(6, 2), lookup(6, 3)]), merge([outer(4, 3), lookup(4, 1)])),
    "tied and plain": lambda: (merge([outer(6, 2), lookup(6, 3)]), lookup(4, 2)),
    "no example": lambda: (outer(6, 2), outer(0, 2)),
}


def exact(term: Term) -> torch.Tensor:
    """Gradients (B, P), one part, position and entry at a time, in float64."""
    total = torch.zeros(term.batch_size, term.n_rows * term.row_size, dtype=torch.float64)
    for part in term.parts:
        for i in range(part.batch_size):
            if isinstance(part, Dense):
                total[i] += part.g[i].double()
            elif isinstance(part, OuterProduct):
                for a, e in zip(part.a[i].double(), part.e[i].double(), strict=True):
                    total[i] += torch.outer(e, a).flatten()
            elif isinstance(part, Lookup):
                for row, e in zip(part.ids[i].tolist(), part.e[i].double(), strict=True):
                    if row >= 0:
                        total[i, 5 * row : 5 * row + 5] += e
    return total


@pytest.mark.parametrize("chunk", [1, 50, 4_000_000])
@pytest.mark.parametrize("name", PAIRS)
def test_equals_products_of_the_gradients_themselves(name: str, chunk: int) -> None:
    torch.manual_seed(0)
    left, right = PAIRS[name]()
    products = cross_products(left, right, chunk)
    torch.testing.assert_close(products, exact(left) @ exact(right).T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(cross_products(right, left, chunk), products.T, rtol=1e-12, atol=1e-12)


def test_a_part_of_the_examples() -> None:
    for term in (outer(6, 2), lookup(6, 2), dense(6), merge([outer(6, 2), lookup(6, 3)])):
        assert torch.equal(exact(examples_of(term, slice(1, 4))), exact(term)[1:4])


def test_compact_is_the_smaller_of_two_forms() -> None:
    few, many = outer(3, 2), outer(3, 9)
    assert compact(few) is few
    small = compact(many)
    assert isinstance(small, Dense)
    torch.testing.assert_close(small.g.double(), exact(many), rtol=1e-5, atol=1e-5)


def test_squared_norms_and_missing_parameters() -> None:
    terms = {"a": outer(7, 2), "b": lookup(7, 3)}
    expected = sum(exact(term).square().sum(dim=1) for term in terms.values())
    torch.testing.assert_close(squared_norms(terms, 7, height=3), expected, rtol=1e-12, atol=0)
    assert torch.equal(cross_gram(terms, {}, (7, 2)), torch.zeros(7, 2, dtype=torch.float64))
    assert squared_norms({}, 0).tolist() == []
