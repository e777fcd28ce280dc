"""Mode "reuse": the sum of the per-example gradients stands in for the gradient that autograd would form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradient_disclosure import GradientGram
from gradient_disclosure.errors import DisclosureError, IncompleteGramError
from gradient_disclosure.gram.registry import register_gram_terms
from tests.gram.architectures import ARCHITECTURES, Architecture, architecture
from tests.gram.conditions import EXACT, EXACT_OR_REFUSED, Condition
from tests.gram.oracle import assert_same_gram, expected_gram, footprint, seeded
from tests.gram.test_conditions import language_model

reuse = partial(GradientGram, mode="reuse", verify=False)


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def largest_difference(found: list[Tensor | None], expected: list[Tensor | None]) -> float:
    """Over all parameters, relative to the length of the whole gradient: one of a parameter may be all rounding."""
    assert [g is None for g in found] == [g is None for g in expected]
    pairs = [(f, e) for f, e in zip(found, expected, strict=True) if f is not None and e is not None]
    assert all(f.dtype == e.dtype and f.shape == e.shape for f, e in pairs)
    whole = torch.stack([e.double().norm() for _, e in pairs]).norm()
    return float(max((f.double() - e.double()).norm() for f, e in pairs) / whole)


@pytest.mark.parametrize(
    ("dtype", "relative", "steps"), [(torch.float64, 1e-12, 3), (torch.float32, 1e-6, 50)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case.name)
def test_the_gradient_is_autograds_over_a_training(
    case: Architecture, dtype: torch.dtype, relative: float, steps: int
) -> None:
    """In each step, the same dropout masks at the same weights.

    Where a gradient is what remains of much larger terms, float32 itself is no better than a few 1e-6, and how far
    depends on the machine's kernels: there ours must be as near as autograd's is to the gradient in float64.
    """
    model, batch = case.model(dtype), case.inputs(dtype)
    if case.float32_inside:
        relative = 1e-6
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    farthest = rounding = 0.0
    for step in range(steps):
        optimizer.zero_grad()
        with seeded(step):
            case.run(model, batch)[1].backward()
        expected = gradients(model)
        optimizer.zero_grad()
        with reuse(model) as gram, seeded(step):
            case.run(model, batch)[1].backward()
        assert gram.coverage == 1.0
        difference = largest_difference(gradients(model), expected)
        if difference >= relative and dtype == torch.float32:
            rounding = max(rounding, rounding_of(expected, case, model, step))
        farthest = max(farthest, difference)
        optimizer.step()
    assert farthest < max(relative, 2 * rounding)


def rounding_of(gradient: list[Tensor | None], case: Architecture, model: nn.Module, step: int) -> float:
    """How far autograd's gradient in float32 is from the one in float64."""
    exact = copy.deepcopy(model).double()
    exact.zero_grad()
    with seeded(step):
        case.run(exact, case.inputs(torch.float64))[1].backward()
    found = largest_difference([None if g is None else g.double() for g in gradient], gradients(exact))
    assert found < 1e-5, "not rounding: another batch, or other dropout masks"
    return found


@pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case.name)
def test_gram_of_an_architecture(case: Architecture) -> None:
    model, batch = case.model(torch.float64), case.inputs(torch.float64)
    expected = expected_gram(model, lambda: case.run(model, batch)[0])
    model.zero_grad()
    before = footprint(model)
    with reuse(model) as gram, seeded():
        case.run(model, batch)[0].sum().backward()
    assert_same_gram(gram.gram(), expected, 1e-6 if case.float32_inside else 1e-9)
    assert footprint(model) == before


@pytest.mark.parametrize("case", EXACT + EXACT_OR_REFUSED, ids=lambda case: case.name)
def test_any_module(case: Condition) -> None:
    module, inputs = case.module(torch.float64), case.inputs(torch.float64)
    plain = copy.deepcopy(module)
    with seeded():
        case.losses(plain, inputs).mean().backward()
    oracle = copy.deepcopy(module)
    expected = expected_gram(oracle, lambda: case.losses(oracle, inputs) / case.batch_size)
    before = footprint(module)
    try:
        with seeded(), reuse(module, time_first=case.time_first) as gram:
            case.losses(module, inputs).mean().backward()
            found = gram.gram()
    except DisclosureError:
        assert case.refusable
        assert footprint(module) == before
        return
    assert footprint(module) == before
    assert_same_gram(found, expected, 1e-9)
    assert largest_difference(gradients(module), gradients(plain)) < 1e-9


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    case = architecture("gpt2, dropout, T = B")
    model, batch = case.model(torch.float64), case.inputs(torch.float64)
    expected = expected_gram(model, lambda: case.run(model, batch)[0])
    with seeded():
        case.run(model, batch)[0].sum().backward()
    plain = gradients(model)
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    with reuse(model) as gram, seeded():
        case.run(model, batch)[0].sum().backward()
    assert_same_gram(gram.gram(), expected, 1e-9)
    assert largest_difference(gradients(model), plain) < 1e-12


def small() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 3)).double()
    return model, torch.randn(5, 2, 6, 6, dtype=torch.float64)


def both(step: Callable[[nn.Module, Tensor], None]) -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Gradients after a step in reuse mode, and after a plain one."""
    model, x = small()
    plain = copy.deepcopy(model)
    step(plain, x)
    with reuse(model):
        step(model, x)
    return gradients(model), gradients(plain)


def test_autograd_forms_no_weight_gradient_of_its_own() -> None:
    model, x = small()
    with reuse(model):
        output = model(x)
        nodes, waiting = set(), [output.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                waiting += [following for following, _ in node.next_functions]
        output.square().mean().backward()
    leaves = [node for node in nodes if type(node).__name__ == "AccumulateGrad"]
    assert len(leaves) == 4
    receivers = [n.name() for n in nodes if any(f in leaves for f, _ in n.next_functions)]
    assert receivers == ["DeliveryBackward"] * 2
    assert all(p.requires_grad for p in model.parameters())


def test_hooks_of_parameters_see_the_gradient() -> None:
    seen: list[float] = []

    def step(model: nn.Module, x: Tensor) -> None:
        handles = [model[0].weight.register_hook(lambda g: 3 * g)]
        handles += [model[3].bias.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.sum())))]
        model(x).square().mean().backward()
        for handle in handles:
            handle.remove()

    found, expected = both(step)
    assert largest_difference(found, expected) < 1e-12
    assert seen[0] == pytest.approx(seen[1], rel=1e-12)


def test_gradients_accumulate() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        model(x).square().mean().backward()

    assert largest_difference(*both(step)) < 1e-12


def test_the_gradient_of_the_input_is_right() -> None:
    model, x = small()
    x.requires_grad_()
    (expected,) = torch.autograd.grad(model(x).square().mean(), x)
    with reuse(model):
        model(x).square().mean().backward()
    torch.testing.assert_close(x.grad, expected, rtol=1e-12, atol=0)


def test_frozen_and_excluded_parameters() -> None:
    model, x = small()
    model[0].weight.requires_grad_(False)
    plain = copy.deepcopy(model)
    plain(x).square().mean().backward()
    with reuse(model, exclude=["3.weight"]) as gram:
        model(x).square().mean().backward()
    assert gram.coverage < 1
    assert largest_difference(gradients(model), gradients(plain)) < 1e-12
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True]


def test_micro_batches() -> None:
    model, _ = language_model()
    plain = copy.deepcopy(model)
    parts = [torch.randint(0, 7, shape) for shape in ((3, 5), (2, 4))]
    grams = []
    for each, mode in ((model, "reuse"), (plain, "untouched")):
        torch.manual_seed(0)
        with GradientGram(each, micro_batches=2, verify=False, mode=mode) as gram:  # type: ignore[arg-type]
            for ids in parts:
                logits = each(ids)
                F.cross_entropy(logits[:, :-1].mT, ids[:, 1:]).backward()
        grams.append(gram.gram())
    assert_same_gram(*grams, 1e-12)
    assert largest_difference(gradients(model), gradients(plain)) < 1e-12


def test_an_empty_batch() -> None:
    model, x = small()
    plain = copy.deepcopy(model)
    plain(x[:0]).sum().backward()
    with reuse(model) as gram:
        model(x[:0]).sum().backward()
    assert gram.gram().shape == (0, 0)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


def test_backward_after_the_context_still_gives_the_gradient() -> None:
    model, x = small()
    plain = copy.deepcopy(model)
    plain(x).square().mean().backward()
    context = reuse(model)
    context.__enter__()
    loss = model(x).square().mean()
    context.abandon()
    loss.backward()
    assert largest_difference(gradients(model), gradients(plain)) < 1e-12


def test_an_exception_in_a_layer_leaves_parameters_trainable() -> None:
    model, x = small()
    with pytest.raises(RuntimeError), reuse(model):
        model(x[:, :1])
    assert all(p.requires_grad for p in model.parameters())
    with reuse(model) as gram, torch.no_grad():
        model(x)
        gram.abandon()
    assert all(p.requires_grad for p in model.parameters())


def test_a_second_backward_pass_is_refused() -> None:
    model, x = small()
    with pytest.raises(IncompleteGramError, match="second"), reuse(model):
        loss = model(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward()


def test_gradients_of_gradients_are_refused() -> None:
    model, x = small()
    x.requires_grad_()
    with pytest.raises((RuntimeError, IncompleteGramError), match=r"once_differentiable|second"), reuse(model):
        (found,) = torch.autograd.grad(model(x).square().mean(), x, create_graph=True)
        found.square().sum().backward()


def test_a_verified_pass_is_untouched() -> None:
    model, x = small()
    plain = copy.deepcopy(model)
    plain(x).square().mean().backward()
    with GradientGram(model, mode="reuse") as gram:
        model(x).square().mean().backward()
    assert gram.verified
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True))


def test_watched_layers_are_left_to_autograd() -> None:
    seen: list[tuple[Tensor | None, ...]] = []

    def step(model: nn.Module, x: Tensor) -> None:
        handle = model[3].register_full_backward_hook(lambda _, given, __: seen.append(given))
        model(x).square().mean().backward()
        handle.remove()

    assert largest_difference(*both(step)) < 1e-12
    assert len(seen) == 2


def test_a_layer_function_that_forgets_a_parameter_is_named() -> None:
    class Forgetful(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)

    @register_gram_terms(Forgetful)
    def forgets(module: Forgetful, a: Tensor, e: Tensor):  # type: ignore[no-untyped-def]
        from gradient_disclosure.gram.linear import linear_terms

        yield from (found for found in linear_terms(module, a, e) if found[0] == "weight")

    model = nn.Sequential(Forgetful(3, 2))
    with pytest.raises(IncompleteGramError, match=r"Forgetful gave nothing for 0\.bias"), reuse(model):
        model(torch.randn(4, 3)).sum().backward()


def test_checkpointed_first_layer() -> None:
    """Its input needs no gradient, and while it runs neither does its weight."""

    def step(model: nn.Module, x: Tensor) -> None:
        hidden = checkpoint(lambda y: model[1](model[0](y)), x, use_reentrant=False)
        model[3](model[2](hidden)).square().mean().backward()

    assert largest_difference(*both(step)) < 1e-12


def test_autocast() -> None:
    def step(model: nn.Module, x: Tensor) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model.float()(x.float()).float().square().mean()
        loss.backward()

    found, expected = both(step)
    assert largest_difference(found, expected) < 2e-2


def test_unknown_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="mode"):
        GradientGram(nn.Linear(2, 2), mode="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="memory_budget_mb"):
        GradientGram(nn.Linear(2, 2), memory_budget_mb=0)
    with pytest.raises(ValueError, match="products"):
        GradientGram(nn.Linear(2, 2), products="float16")  # type: ignore[arg-type]
