"""What a review found to be wrong without a word: each case is exact, or refused by name."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure import GradientGram
from gradient_disclosure.errors import BatchCouplingError, DisclosureError, IncompleteGramError, UnsupportedLayerError

B, T, D = 4, 4, 5
"""As many steps as examples: the shape tells nothing."""


class Body(nn.Module):
    """A layer before, one behind, parameters of several kinds beside them, and a forward that is given."""

    def __init__(self, forward: Callable[[Body, Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(D, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.frozen = nn.Parameter(torch.randn(T, 6), requires_grad=False)
        self.attribute = torch.randn(T, 6)
        self.own, self.gains = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6, 6))
        self.table, self.norm = nn.Embedding(T, 6), nn.LayerNorm(6)
        self.run = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def summed(output: Tensor) -> Tensor:
    weights = torch.arange(output[0].numel(), dtype=output.dtype).add(0.3).cos().reshape(output[0].shape)
    return (output * weights + output**2).flatten(1).sum(dim=1)


def expected(module: nn.Module, x: Tensor) -> Tensor:
    """Gradients of each example's share of one and the same forward pass."""
    losses = summed(module(x))
    parameters = [p for p in module.parameters() if p.requires_grad]
    rows = []
    for loss in losses:
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        rows.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(parameters, found)]))  # noqa: B905
    gradients = torch.stack(rows)
    return gradients @ gradients.T


def observed(module: nn.Module, x: Tensor, **options: object) -> Tensor:
    with GradientGram(module, "sum", **options) as gram:  # type: ignore[arg-type]
        summed(module(x)).sum().backward()
    return gram.gram()


def body(forward: Callable[[Body, Tensor], Tensor]) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Body(forward).double(), torch.randn(B, T, D, dtype=torch.float64)


EXACT: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "layer on a frozen table": lambda m, x: m.c(torch.tanh(m.a(x) + m.b(m.frozen))),
    "layer on a plain attribute": lambda m, x: m.c(torch.tanh(m.a(x) + m.b(m.attribute.double()))),
    "positions made of the data's shape": lambda m, x: m.c(
        torch.tanh(m.a(x) + m.table(x.new_ones(T).cumsum(0).long() - 1))
    ),
    "positions cast like the data": lambda m, x: m.c(torch.tanh(m.a(x) + m.table(torch.arange(T).type_as(x).long()))),
    "zeros filled with the data": lambda m, x: m.c(filled(m.a(x))),
    "scalar parameter": lambda m, x: m.c(m.a(x) + m.own.sum().exp() + m.own[0]),
    "computed weight": lambda m, x: m.c(F.linear(m.a(x), m.gains.softmax(1) @ m.gains.t())),
    "long chain": lambda m, x: m.c(m.a(x) @ sinkhorn(m.gains)),
}
EXACT_OR_REFUSED: dict[str, Callable[[Body, Tensor], Tensor]] = {
    "norm on merged heads": lambda m, x: m.c(m.norm(m.a(x).transpose(0, 1)).transpose(0, 1)),
    "rows taken out": lambda m, x: m.c(put(m.a(x), m.b)),
    "rows in another order": lambda m, x: m.c(m.b(m.a(x).reshape(-1, 6).flip(0)).flip(0).reshape(B, T, 6)),
    "centered between layers": lambda m, x: m.c(m.b(torch.tanh(m.a(x) - m.a(x).mean(0)))),
    "rolled between layers": lambda m, x: m.c(m.b(m.a(x).roll(1, 0))),
    "assigned token": lambda m, x: m.c(assigned(m.a(x) * 1, m.own)),
    "layer norm over the batch": lambda m, x: m.c(m.a(x) + F.layer_norm(m.a(x), (B, T, 6))),
}


def filled(h: Tensor) -> Tensor:
    store = torch.zeros(B, T, 6, dtype=h.dtype)
    store[:, 1:] = h[:, 1:]
    return store


def assigned(h: Tensor, token: Tensor) -> Tensor:
    h[:, 0] = token
    return h


def put(h: Tensor, layer: nn.Module) -> Tensor:
    chosen = torch.tensor([0, 5, 6, 11])
    flat = h.reshape(-1, 6)
    return flat.index_copy(0, chosen, layer(flat[chosen])).reshape(B, T, 6)


def sinkhorn(weight: Tensor) -> Tensor:
    weight = weight.exp()
    for _ in range(30):
        weight = weight / weight.sum(0, keepdim=True)
        weight = weight / weight.sum(1, keepdim=True)
    return weight


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str, verify: bool) -> None:
    module, x = body(EXACT[name])
    torch.testing.assert_close(observed(module, x, verify=verify), expected(module, x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", EXACT_OR_REFUSED)
def test_exact_or_refused(name: str) -> None:
    module, x = body(EXACT_OR_REFUSED[name])
    try:
        found = observed(module, x)
    except DisclosureError:
        return
    torch.testing.assert_close(found, expected(module, x), rtol=1e-9, atol=1e-9)


def test_complex_parameters_are_refused() -> None:
    with pytest.raises(UnsupportedLayerError, match="complex"), GradientGram(nn.Linear(3, 2, dtype=torch.cdouble)):
        pass


class Counting(nn.Module):
    """Counts its calls and keeps what it computed."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.calls, self.kept = nn.Parameter(torch.randn(6).double()), 0, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.kept = (x * self.gain).square().mean(dim=(1, 2))
        return x.reshape(-1, 6).mul(self.gain).reshape(x.shape)


def test_what_a_module_keeps_is_its_own() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(D, 6), Counting(), nn.Linear(6, 2)).double()
    x = torch.randn(B, T, D, dtype=torch.float64)
    seen: list[Tensor] = []
    handle = module[1].register_forward_hook(lambda m, args, output: seen.append(output))
    with GradientGram(module, "sum"):
        (summed(module(x)) + module[1].kept).sum().backward()
    handle.remove()
    assert module[1].calls == 1
    assert len(seen) == 1
    assert seen[0].shape == (*x.shape[:2], 6)


def test_random_numbers_are_those_of_the_plain_step() -> None:
    def noisy(gradient: Tensor) -> Tensor:
        return gradient + 0.0 * torch.rand(())

    def states(observe: bool) -> Tensor:
        module, x = body(lambda m, x: hooked(m.a(x) * m.own, m.c))
        torch.manual_seed(7)
        if observe:
            observed(module, x)
        else:
            summed(module(x)).sum().backward()
        return torch.get_rng_state()

    def hooked(h: Tensor, layer: nn.Module) -> Tensor:
        h.register_hook(noisy)
        return layer(F.dropout(h))

    assert torch.equal(states(True), states(False))


@pytest.mark.parametrize("operation", [torch.add, torch.sub, torch.mul])
def test_a_scalar_does_not_change_the_precision_under_autocast(operation: Callable[..., Tensor]) -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.shift = nn.Linear(D, 6), nn.Parameter(torch.tensor(0.3))

        def forward(self, x: Tensor) -> Tensor:
            return operation(self.fc(x), self.shift.exp())

    module, x = Shifted(), torch.randn(B, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = module(x)
        with GradientGram(module, "sum"):
            seen = module(x)
            seen.float().square().sum().backward()
    assert seen.dtype == plain.dtype
    assert torch.equal(seen, plain)


def test_a_copy_made_within_the_context_is_free() -> None:
    module = nn.Sequential(nn.Linear(D, 6), nn.Linear(6, 2))
    with GradientGram(module, "sum"):
        twin = copy.deepcopy(module)
        summed(module(torch.randn(B, D))).sum().backward()
    summed(twin(torch.randn(7, D))).sum().backward()


def test_a_second_gradient_is_an_error_without_verification_too() -> None:
    module, x = body(lambda m, x: m.c(m.a(x)))
    with pytest.raises(IncompleteGramError, match="second gradient"), GradientGram(module, "sum", verify=False):
        loss = summed(module(x)).sum()
        loss.backward(retain_graph=True)
        loss.backward()


def test_nested_contexts_are_refused() -> None:
    module, _ = body(lambda m, x: m.c(m.a(x) * m.own))
    with GradientGram(module), pytest.raises(DisclosureError, match="another GradientGram"), GradientGram(module):
        pass


def test_two_passes_before_a_backward_pass_of_micro_batches_are_refused() -> None:
    module, x = body(lambda m, x: m.c(m.a(x)))
    with pytest.raises(IncompleteGramError, match="ran twice"), GradientGram(module, "sum", micro_batches=2):
        (summed(module(x)).sum() + summed(module(x)).sum()).backward()


def test_a_layer_whose_forward_was_replaced_has_other_gradients() -> None:
    module, x = body(lambda m, x: m.c(m.a(x)))
    linear = module.a
    linear.forward = lambda x: 2 * F.linear(x, linear.weight, linear.bias)  # type: ignore[method-assign]
    torch.testing.assert_close(observed(module, x, verify=False), expected(module, x))


def test_standardized_convolutions_have_other_gradients() -> None:
    class Standardized(nn.Conv1d):
        def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return super()._conv_forward(x, weight - weight.mean(dim=(1, 2), keepdim=True), bias)

    torch.manual_seed(0)
    module = nn.Sequential(Standardized(3, 4, 3), nn.Flatten(), nn.Linear(12, 2)).double()
    x = torch.randn(B, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(observed(module, x, verify=False), expected(module, x))


def test_norms_over_all_axes_are_refused() -> None:
    module = nn.LayerNorm((B, D))
    with pytest.raises(BatchCouplingError, match="the batch among them"), GradientGram(module, "sum"):
        summed(module(torch.randn(B, D))).sum().backward()


def test_positions_given_for_all_examples() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.where, self.what, self.head = nn.Embedding(T, 6), nn.Embedding(9, 6), nn.Linear(6, 2)

        def forward(self, positions: Tensor, ids: Tensor) -> Tensor:
            return self.head(torch.tanh(self.where(positions) + self.what(ids)))

    torch.manual_seed(0)
    module = Positions().double()
    ids, positions = torch.randint(0, 9, (B, T)), torch.arange(T)[None]
    losses = summed(module(positions, ids))
    parameters = list(module.parameters())
    gradients = torch.stack(
        [torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=True)]) for loss in losses]
    )
    with GradientGram(module, "sum") as gram:
        summed(module(positions=positions, ids=ids)).sum().backward()
    torch.testing.assert_close(gram.gram(), gradients @ gradients.T)


@pytest.mark.parametrize("steps", [3, 4, 8])
def test_a_parameter_beside_a_time_first_layer(steps: int) -> None:
    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.gain = nn.GRU(D, 6), nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x.transpose(0, 1))[0].transpose(0, 1) * self.gain

    torch.manual_seed(0)
    module, x = Beside().double(), torch.randn(B, steps, D, dtype=torch.float64)
    torch.testing.assert_close(observed(module, x), expected(module, x))
