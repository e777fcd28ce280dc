"""Conditions a training puts plain torch modules in, against one ordinary run by autograd alone."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from gradient_disclosure import GradientGram
from gradient_disclosure.errors import BatchCouplingError, DisclosureError, UnsupportedLayerError
from tests.gram.architectures import Architecture, architecture, llama, lora, randomize, tokens
from tests.gram.condition_modules import Language, Own
from tests.gram.conditions import COUPLED, EXACT, EXACT_OR_REFUSED, Condition
from tests.gram.oracle import (
    assert_exact_or_refused,
    assert_same_gram,
    expected_gram,
    footprint,
    inner_products,
    observed_gram,
    seeded,
    share_gradients,
)


def measured(case: Condition, dtype: torch.dtype = torch.float64) -> tuple[Callable[[], Tensor], Tensor]:
    """What the engine finds, when called, and what it should find. Modules with a state of their own are copied."""
    module, inputs = case.module(dtype), case.inputs(dtype)
    plain = copy.deepcopy(module)
    expected = expected_gram(plain, lambda: case.losses(plain, inputs) / case.batch_size)

    def observe() -> Tensor:
        return observed_gram(module, lambda: case.losses(module, inputs).mean(), time_first=case.time_first)

    return observe, expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", EXACT, ids=lambda case: case.name)
def test_gram_is_exact(case: Condition, dtype: torch.dtype) -> None:
    observe, expected = measured(case, dtype)
    assert_same_gram(observe(), expected, {torch.float64: 1e-9, torch.float32: 1e-4}[dtype])


@pytest.mark.parametrize("case", EXACT_OR_REFUSED, ids=lambda case: case.name)
def test_gram_is_exact_or_refused_by_name(case: Condition) -> None:
    observe, expected = measured(case)
    assert_exact_or_refused(case.refusable, observe, expected, relative=1e-9)


@pytest.mark.parametrize("case", EXACT + EXACT_OR_REFUSED, ids=lambda case: case.name)
def test_training_is_untouched_and_nothing_remains(case: Condition) -> None:
    """Gradients, buffers and the random numbers that follow are bitwise those of a run that nobody watches."""
    module, inputs = case.module(torch.float32), case.inputs(torch.float32)
    plain, before = copy.deepcopy(module), footprint(module)
    with seeded():
        case.losses(plain, inputs).mean().backward()
        next_number = torch.rand(())
    try:
        with seeded(), GradientGram(module, time_first=case.time_first) as gram:
            case.losses(module, inputs).mean().backward()
            gram.gram()
            assert torch.equal(torch.rand(()), next_number)
    except DisclosureError:
        assert case.refusable
        assert footprint(module) == before
        return
    assert footprint(module) == before
    for (name, p), q in zip(module.named_parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name
    for (name, b), c in zip(module.named_buffers(), plain.buffers(), strict=True):
        assert torch.equal(b, c), name


@pytest.mark.parametrize("name", list(COUPLED))
def test_a_parameter_used_across_the_batch_is_refused(name: str) -> None:
    module = randomize(Own((6,), COUPLED[name]))
    before = footprint(module)
    with pytest.raises((BatchCouplingError, UnsupportedLayerError), match="own"), GradientGram(module):
        module(torch.randn(4, 3, 5)).square().sum(dim=(1, 2)).mean().backward()
    assert footprint(module) == before


def test_lora_on_an_embedding_is_exact_or_refused() -> None:
    """Its matrices are bare parameters in a dictionary, used by a functional lookup."""
    build = partial(lora, llama, ["embed_tokens", "q_proj"])
    case = Architecture("llama, lora on the embedding", build, partial(tokens, 3, 5), shift=True)
    model, batch = case.model(torch.float64), case.inputs(torch.float64)
    expected = expected_gram(model, lambda: case.run(model, batch)[0])
    observe = partial(observed_gram, model, lambda: case.run(model, batch)[0].sum())
    assert_exact_or_refused(["lora_embedding"], observe, expected, relative=1e-6)


def language_model() -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """A tied model in float64, and the loss (B,) of each example."""
    torch.manual_seed(0)
    model = randomize(Language()).double()

    def losses(ids: Tensor) -> Tensor:
        logits = model(ids)
        return nn.functional.cross_entropy(logits[:, :-1].mT, ids[:, 1:], reduction="none").mean(dim=1)

    return model, losses


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shapes", [((3, 5), (2, 4)), ((3, 3), (3, 3)), ((2, 4), (1, 6), (4, 4))])
def test_micro_batches_form_one_gram(shapes: tuple[tuple[int, int], ...], reduction: str) -> None:
    model, losses = language_model()
    parts = [torch.randint(0, 7, shape) for shape in shapes]
    reduce = {"mean": torch.mean, "sum": torch.sum}[reduction]
    rows = [row for ids in parts for row in share_gradients(model, losses(ids))]
    before = footprint(model)
    with GradientGram(model, loss_reduction=reduction, micro_batches=len(parts)) as gram:
        for ids in parts:
            (reduce(losses(ids)) / len(parts)).backward()
    assert gram.coverage == 1.0
    assert footprint(model) == before
    assert_same_gram(gram.gram(loss_scale=1 / len(parts)), inner_products(rows), relative=1e-9)


def test_micro_batches_of_padded_text_with_its_own_loss() -> None:
    """Token means: each example's own gradient is B times its share, B that of its micro-batch."""
    case = architecture("gpt2, padded")
    model = case.model(torch.float64)
    torch.manual_seed(3)
    parts = [tokens(3, 6, padded=True), tokens(2, 4, padded=True)]
    rows = []
    for batch in parts:
        rows += share_gradients(model, case.run(model, batch)[0] * len(batch["labels"]))
    model.zero_grad()
    with GradientGram(model, loss_reduction="mean", micro_batches=2) as gram:
        for batch in parts:
            (case.run(model, batch)[1] / 2).backward()
    assert_same_gram(gram.gram(loss_scale=0.5), inner_products(rows), relative=1e-6)  # its own loss is in float32


def attentive() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 8), nn.GELU(), nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), nn.Linear(8, 3)
    )


def half_step(scale: float) -> tuple[nn.Module, Callable[[], Tensor], Tensor]:
    """A module, its losses under fp16 autocast, and the Gram of gradients that went through fp16 times ``scale``."""
    torch.manual_seed(0)
    model, x = randomize(attentive()), torch.randn(4, 3, 5)
    autocast = partial(torch.autocast, "cpu", dtype=torch.float16)

    def losses() -> Tensor:
        with autocast():
            return model(x).float().square().sum(dim=(1, 2))

    return model, losses, expected_gram(model, lambda: losses() * scale / 4) / scale**2


def test_float16_autocast_with_a_gradient_scaler() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    model, losses, expected = half_step(64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with GradientGram(model) as gram:
        scaler.scale(losses().mean()).backward()
        observed = gram.gram(loss_scale=scaler.get_scale())
    scaler.step(optimizer)
    assert_same_gram(observed, expected, relative=1e-2)


def test_float16_autocast_without_a_scaler() -> None:
    model, losses, expected = half_step(1.0)
    assert_same_gram(observed_gram(model, lambda: losses().mean()), expected, relative=1e-2)


NO_COMPILER = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C++ compiler at hand")
COMPILERS = ["eager", "aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, NO_COMPILER])]


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def compiled_case() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    layers = nn.Linear(5, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3)
    model, x = randomize(nn.Sequential(*layers)).double(), torch.randn(4, 3, 5, dtype=torch.float64)
    return model, x, expected_gram(model, lambda: model(x).square().sum(dim=(1, 2)) / 4)


def step(model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return model(x).square().sum(dim=(1, 2)).mean()


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("watch", ["the module", "the compiled wrapper"])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_before_entering(watch: str, backend: str) -> None:
    model, x, expected = compiled_case()
    compiled = torch.compile(model, backend=backend)
    step(compiled, x).backward()
    watched = model if watch == "the module" else compiled
    observed = observed_gram(model, lambda: step(compiled, x), watched=watched)
    assert_same_gram(observed, expected, relative=1e-9)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_in_place_before_entering(backend: str) -> None:
    model, x, expected = compiled_case()
    model.compile(backend=backend)
    step(model, x).backward()
    for _ in range(2):  # again after the first context has been left
        assert_same_gram(observed_gram(model, lambda: step(model, x)), expected, relative=1e-9)
        step(model, x).backward()


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_after_entering(in_place: bool, backend: str) -> None:
    model, x, expected = compiled_case()
    with GradientGram(model) as gram:
        if in_place:
            model.compile(backend=backend)
            step(model, x).backward()
        else:
            step(torch.compile(model, backend=backend), x).backward()
    assert_same_gram(gram.gram(), expected, relative=1e-9)
    plain = torch.compile(copy.deepcopy(model), backend=backend)
    torch.testing.assert_close(plain(x), model(x))
