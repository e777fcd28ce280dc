"""Sums of products against float64 at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradient_disclosure import GradientGram
from gradient_disclosure.gram.lookup import Lookup
from gradient_disclosure.gram.outer_product import OuterProduct
from gradient_disclosure.gram.products import GramSum, add_square, mirrored, products, whole_tiles
from gradient_disclosure.gram.terms import merge
from gradient_disclosure.gram.tied import TiedHead


def relative_error(found: Tensor, exact: Tensor) -> float:
    length = exact.diagonal().sqrt()
    return float(((found - exact) / (length[:, None] * length)).abs().max())


@pytest.mark.parametrize("most", [50, 5_000, 2_000_000])
@pytest.mark.parametrize("batch", [1, 3, 16, 97, 130])
@pytest.mark.parametrize("widths", [(1,), (513, 20_000, 0, 7)])
def test_exact(batch: int, widths: tuple[int, ...], most: int) -> None:
    torch.manual_seed(0)
    blocks = [torch.randn(batch, width) for width in widths]
    total = GramSum(batch, torch.device("cpu"), most)
    for block in blocks:
        total.add(block)
    whole = torch.cat(blocks, dim=1).double()
    found = total.result()
    assert relative_error(found, whole @ whole.T) < 1e-13
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("batch", [4, 40])
def test_mixed_precision_loses_little_and_not_nothing(batch: int) -> None:
    """Of gradients that point the same way, so that errors could add up; beside it, float32 alone."""
    torch.manual_seed(0)
    block = torch.randn(1, 1_000_003) + 0.1 * torch.randn(batch, 1_000_003)
    total = GramSum(batch, torch.device("cpu"), mixed=True)
    total.add(block)
    exact = block.double() @ block.double().T
    error = relative_error(total.result(), exact)
    assert 1e-12 < error < 2e-8 < relative_error((block @ block.T).double(), exact)


def test_mixed_precision_leaves_float64_alone() -> None:
    torch.manual_seed(0)
    block = torch.randn(4, 100_000, dtype=torch.float64)
    total = GramSum(4, torch.device("cpu"), mixed=True)
    total.add(block)
    assert relative_error(total.result(), block @ block.T) < 1e-13


@pytest.mark.parametrize("rows", [1, 3, 128])
def test_squares_below_the_diagonal(rows: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(10, 4)
    total = torch.zeros(10, 10, dtype=torch.float64)
    add_square(total, x, rows, mixed=False)
    torch.testing.assert_close(mirrored(total), x.double() @ x.double().T, rtol=0, atol=1e-14)


def test_products_of_two() -> None:
    torch.manual_seed(0)
    left, right = torch.randn(3, 50), torch.randn(5, 50)
    torch.testing.assert_close(products(left, right, 20), left.double() @ right.double().T, rtol=0, atol=1e-13)


def test_whole_tiles() -> None:
    assert [whole_tiles(n) for n in (1, 15, 16, 33, 100, 162, 300)] == [1, 15, 16, 32, 64, 128, 256]


def test_a_tied_head_and_its_lookups() -> None:
    torch.manual_seed(0)
    head = OuterProduct(torch.randn(3, 4, 5, dtype=torch.float64), torch.randn(3, 4, 11, dtype=torch.float64), (11, 5))
    ids = torch.tensor([[0, 7, 7], [7, -1, 3], [10, 0, 0]])
    lookup = Lookup(ids, torch.randn(3, 3, 5, dtype=torch.float64), (11, 5))
    for chunk in (1, 40, 10**6):
        cross = TiedHead(head, [ids, torch.tensor([5])]).cross(lookup, chunk)
        whole = head.gram() + lookup.gram() + cross + cross.T
        torch.testing.assert_close(whole, merge([head, lookup]).gram(), rtol=1e-12, atol=1e-12)


class Tied(nn.Module):
    """A table looked up, and used as a head; ``twice``: another lookup that leads nowhere."""

    def __init__(self, *, twice: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 6)
        self.head = nn.Linear(6, 40, bias=False)
        self.head.weight = self.table.weight
        self.twice = twice

    def forward(self, ids: Tensor) -> Tensor:
        if self.twice:
            self.table(ids.flip(1))
        return self.head(torch.tanh(self.table(ids)))


@pytest.mark.parametrize("mode", ["untouched", "reuse"])
@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_the_logits_gradients_are_not_kept(twice: bool, stopped: bool, mode: str) -> None:
    """Also where the lookups' gradients never arrive."""
    torch.manual_seed(0)
    model = Tied(twice=twice).double()
    ids = torch.randint(0, 40, (3, 7))

    def losses() -> Tensor:
        logits = model.head(torch.tanh(model.table(ids)).detach()) if stopped else model(ids)
        return logits.square().sum(dim=(1, 2))

    rows = torch.stack([torch.autograd.grad(each, model.table.weight, retain_graph=True)[0] for each in losses()])
    expected = rows.flatten(1) @ rows.flatten(1).T
    with GradientGram(model, "sum", mode=mode, verify=False) as gram:  # type: ignore[arg-type]
        loss = losses().sum()
        account = next(iter(gram._accounts.values()))
        loss.backward()
        assert not any(isinstance(use, OuterProduct) for use in account._uses)
    torch.testing.assert_close(gram.gram(), expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(model.table.weight.grad, rows.sum(dim=0), rtol=1e-10, atol=1e-12)


def test_the_memory_budget_bounds_what_is_formed() -> None:
    from tests.gram.test_terms import Largest

    torch.manual_seed(0)
    model, x = nn.Linear(300, 200), torch.randn(4, 30, 300)
    largest = {}
    for budget in (0.5, 64.0):
        with GradientGram(model, verify=False, memory_budget_mb=budget):
            loss = model(x).square().mean()
            with Largest() as found:
                loss.backward()
        largest[budget] = found.entries
    assert largest[64.0] == 4 * 300 * 200
    assert largest[0.5] * 4 <= 0.5e6  # float32
