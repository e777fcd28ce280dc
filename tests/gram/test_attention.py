from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from gradient_disclosure.errors import IncompleteGramError, UnsupportedLayerError
from gradient_disclosure.gram.attention import multihead_attention_terms
from gradient_disclosure.gram.call import ForwardState, LayerCall
from gradient_disclosure.gram.terms import OuterProduct
from tests.gram.attention_cases import CASES, HEADS, KEYS, QUERIES, WIDTH, Arguments, Case, arguments_of

EXACT = 1e-10


def build(case: Case, batch_first: bool, dropout: float = 0.0) -> nn.MultiheadAttention:
    """A module in which no parameter is 0."""
    options = case.options | {"batch_first": batch_first, "dropout": dropout, "dtype": torch.float64}
    module = nn.MultiheadAttention(WIDTH, HEADS, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    return module


@dataclass
class Run:
    """What hooks on a module see of one run."""

    call: LayerCall
    outputs: list[Tensor]

    @property
    def cotangents(self) -> list[tuple[Tensor, Tensor, int]]:
        """(output, its gradient, its batch axis) of the outputs that have a gradient."""
        axes = (0 if self.call.module.batch_first else 1, 0)
        found = zip(self.outputs, self.call.gradients, axes, strict=False)
        return [(output, gradient, axis) for output, gradient, axis in found if gradient is not None]


def run(module: nn.Module, batch: int, *args: Any, used: tuple[int, ...] = (0,), **kwargs: Any) -> Run:
    """Run a module under hooks; the loss has a gradient that differs in every entry of the used outputs."""
    seen: dict[str, Any] = {}

    def before(layer: nn.Module, args: Any, kwargs: Any) -> None:
        seen["state"] = ForwardState.now(torch.device("cpu"), random=True)

    def after(layer: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        seen["args"], seen["kwargs"] = tree_map_only(Tensor, Tensor.detach, (args, kwargs))

    handles = [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(after, with_kwargs=True),
    ]
    outputs = [leaf for leaf in tree_leaves(module(*args, **kwargs)) if isinstance(leaf, Tensor)]
    for handle in handles:
        handle.remove()
    loss = sum((torch.cos(torch.arange(outputs[i].numel()) + i) * outputs[i].flatten()).sum() for i in used)
    gradients = torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True)
    return Run(LayerCall(module, seen["args"], seen["kwargs"], gradients, seen["state"], batch), outputs)


def run_case(module: nn.Module, case: Case, arguments: Arguments, batch: int) -> Run:
    return run(module, batch, used=case.used, **{name: a.value for name, a in arguments.items()})


def gradients_of(module: nn.Module, cotangents: list[tuple[Tensor, Tensor]]) -> list[Tensor | None]:
    """Gradients of all trainable parameters for gradients given at outputs; None for those they do not reach."""
    outputs, gradients = zip(*cotangents, strict=True)
    parameters = [p for p in module.parameters() if p.requires_grad]
    return list(torch.autograd.grad(outputs, parameters, gradients, retain_graph=True, allow_unused=True))


def by_name(module: nn.Module, rows: list[list[Tensor | None]]) -> dict[str, Tensor]:
    """Per-example gradients (B, P) of each parameter that is reached, from those of each example."""
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    if not rows:
        return {name: torch.zeros(0, p.numel(), dtype=p.dtype) for name, p in named}
    columns = {name: [row[j] for row in rows] for j, (name, _) in enumerate(named)}
    return {
        name: torch.stack([g.flatten() for g in column if g is not None])
        for name, column in columns.items()
        if any(g is not None for g in column)
    }


def one_by_one(observed: Run, arguments: Arguments) -> dict[str, Tensor]:
    """Oracle without randomness: each example runs alone."""
    module, rows = observed.call.module, []
    for i in range(observed.call.batch_size):
        alone = module(**{name: argument.of_example(i) for name, argument in arguments.items()})
        outputs = [leaf for leaf in tree_leaves(alone) if isinstance(leaf, Tensor)]
        used = [j for j, gradient in enumerate(observed.call.gradients) if gradient is not None]
        parts = [gradient.narrow(axis, i, 1) for _, gradient, axis in observed.cotangents]
        rows.append(gradients_of(module, [(outputs[j], part) for j, part in zip(used, parts, strict=True)]))
    return by_name(module, rows)


def same_run(observed: Run) -> dict[str, Tensor]:
    """Oracle with randomness: backward through the one real run, the loss's gradient kept at one example at a time."""
    rows = []
    for i in range(observed.call.batch_size):
        masked = []
        for output, gradient, axis in observed.cotangents:
            kept = torch.zeros_like(gradient)
            kept.narrow(axis, i, 1).copy_(gradient.narrow(axis, i, 1))
            masked.append((output, kept))
        rows.append(gradients_of(observed.call.module, masked))
    return by_name(observed.call.module, rows)


def assert_terms_equal(call: LayerCall, expected: dict[str, Tensor]) -> None:
    before = torch.get_rng_state()
    with torch.no_grad():  # as in a hook of the backward pass
        terms = dict(multihead_attention_terms(call))
    assert torch.equal(torch.get_rng_state(), before)
    assert terms.keys() == expected.keys()
    largest = max(float(g.abs().max()) for g in expected.values()) if call.batch_size else 0.0
    for name, gradients in expected.items():
        term = terms[name]
        assert term.shape == tuple(call.module.get_parameter(name).shape)
        torch.testing.assert_close(term.per_example(), gradients, rtol=0, atol=EXACT * largest, msg=name)
        torch.testing.assert_close(term.gram(), gradients @ gradients.T, rtol=0, atol=EXACT * largest**2, msg=name)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_terms_equal_one_by_one_autograd(case: Case, batch_first: bool) -> None:
    torch.manual_seed(0)
    module = build(case, batch_first)
    arguments = arguments_of(case, 3, batch_first)
    observed = run_case(module, case, arguments, 3)
    assert_terms_equal(observed.call, one_by_one(observed, arguments))


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_dropout_is_that_of_the_real_run(case: Case, batch_first: bool) -> None:
    torch.manual_seed(1)
    module = build(case, batch_first, dropout=0.3)
    observed = run_case(module, case, arguments_of(case, 3, batch_first), 3)
    torch.rand(7)  # training goes on drawing between the passes
    assert_terms_equal(observed.call, same_run(observed))


def test_dropout_is_off_in_eval_mode() -> None:
    case = CASES[0]
    module = build(case, batch_first=True, dropout=0.3).eval()
    arguments = arguments_of(case, 3, True)
    observed = run_case(module, case, arguments, 3)
    assert_terms_equal(observed.call, one_by_one(observed, arguments))


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(0, 4),
    queries=st.integers(1, 5),
    keys=st.integers(1, 5),
    heads=st.integers(1, 3),
    head_width=st.integers(1, 4),
    dropout=st.sampled_from([0.0, 0.4]),
    flags=st.fixed_dictionaries(
        {name: st.booleans() for name in ("bias", "add_bias_kv", "add_zero_attn", "batch_first")}
    ),
    need_weights=st.booleans(),
    self_attention=st.booleans(),
)
def test_any_shape(
    batch: int,
    queries: int,
    keys: int,
    heads: int,
    head_width: int,
    dropout: float,
    flags: dict[str, bool],
    need_weights: bool,
    self_attention: bool,
) -> None:
    width = heads * head_width
    module = nn.MultiheadAttention(width, heads, dropout=dropout, dtype=torch.float64, **flags)
    shapes = [(batch, n, width) if flags["batch_first"] else (n, batch, width) for n in (queries, keys)]
    x = torch.randn(shapes[0], dtype=torch.float64)
    y = x if self_attention else torch.randn(shapes[1], dtype=torch.float64)
    observed = run(module, batch, x, y, y, need_weights=need_weights)
    assert_terms_equal(observed.call, same_run(observed))


def test_terms_can_be_taken_inside_the_backward_pass() -> None:
    torch.manual_seed(2)
    module = build(Case("self"), batch_first=False, dropout=0.3)
    x = torch.randn(QUERIES, 3, WIDTH, dtype=torch.float64)
    observed = run(module, 3, x, x, x, need_weights=False)
    (output, cotangent, _), expected = observed.cotangents[0], same_run(observed)
    found: list[dict[str, Tensor]] = []

    def hook(e: Tensor) -> None:
        call = LayerCall(module, observed.call.args, observed.call.kwargs, (e,), observed.call.state, 3)
        found.append({name: term.per_example() for name, term in multihead_attention_terms(call)})

    output.register_hook(hook)
    output.backward(cotangent)
    for name, gradients in expected.items():
        torch.testing.assert_close(found[0][name], gradients, rtol=EXACT, atol=EXACT)
        parameter = module.get_parameter(name)
        assert parameter.grad is not None
        torch.testing.assert_close(found[0][name].sum(0).reshape(parameter.shape), parameter.grad)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("kind", ["self", "memory"])
def test_autocast_terms_are_the_rounded_runs_own_in_float32(kind: str, need_weights: bool) -> None:
    torch.manual_seed(3)
    module = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.3, add_bias_kv=True, batch_first=True)
    x, memory = torch.randn(3, QUERIES, WIDTH), torch.randn(3, KEYS, WIDTH)
    key = x if kind == "self" else memory
    with torch.autocast("cpu", dtype=torch.bfloat16):
        observed = run(module, 3, x, key, key, need_weights=need_weights, used=(0, 1) if need_weights else (0,))
    terms, expected = dict(multihead_attention_terms(observed.call)), same_run(observed)
    for name, gradients in expected.items():
        found = terms[name].per_example()
        assert found.dtype == torch.float32
        # Autograd rounds these very sums to bfloat16, which has 8 bits.
        torch.testing.assert_close(found, gradients, rtol=2**-8, atol=1e-6, msg=name)


def test_inputs_that_are_one_tensor_are_laid_out_once() -> None:
    def positions(kind: str) -> int:
        case = Case(kind, inputs=kind)
        observed = run_case(build(case, True), case, arguments_of(case, 3, True), 3)
        term = dict(multihead_attention_terms(observed.call))["in_proj_weight"]
        assert isinstance(term, OuterProduct)
        return term.a.shape[1]

    assert positions("self") == QUERIES
    assert positions("memory") == QUERIES + KEYS
    assert positions("distinct") == QUERIES + 2 * KEYS


@pytest.mark.parametrize("frozen", ["in_proj_weight", "out_proj.weight", "in_proj_bias", "bias_v"])
def test_frozen_parameters_get_no_term(frozen: str) -> None:
    case = Case("frozen", {"add_bias_kv": True})
    module = build(case, batch_first=True)
    module.get_parameter(frozen).requires_grad_(False)
    arguments = arguments_of(case, 3, True)
    observed = run_case(module, case, arguments, 3)
    assert_terms_equal(observed.call, one_by_one(observed, arguments))


def test_no_gradient_no_terms() -> None:
    x = torch.randn(3, QUERIES, WIDTH)
    call = run(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), 3, x, x, x).call
    without = LayerCall(call.module, call.args, call.kwargs, (None, None), call.state, 3)
    assert list(multihead_attention_terms(without)) == []


def test_unbatched_inputs_are_refused() -> None:
    x = torch.randn(QUERIES, WIDTH)
    call = run(nn.MultiheadAttention(WIDTH, HEADS), QUERIES, x, x, x).call
    with pytest.raises(UnsupportedLayerError, match=r"MultiheadAttention.*without a batch.*\(4, 8\)"):
        list(multihead_attention_terms(call))


def test_another_number_of_examples_is_refused() -> None:
    x = torch.randn(3, QUERIES, WIDTH)
    call = run(nn.MultiheadAttention(WIDTH, HEADS), 3, x, x, x).call
    with pytest.raises(IncompleteGramError, match=r"batch_first=False.*axis 1 is not the batch"):
        list(multihead_attention_terms(call))


def test_parametrized_weights_are_refused_by_name() -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    nn.utils.parametrizations.weight_norm(module, "in_proj_weight")
    x = torch.randn(3, QUERIES, WIDTH)
    call = run(module, 3, x, x, x).call
    with pytest.raises(UnsupportedLayerError, match=r"parametrizations\.in_proj_weight\.original0"):
        list(multihead_attention_terms(call))
