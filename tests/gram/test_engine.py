from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradient_disclosure import GradientGram, gnq_scores
from gradient_disclosure.errors import (
    BatchCouplingError,
    DisclosureError,
    IncompleteGramError,
)
from gradient_disclosure.gram.reference import per_example_gradients
from tests.gram.cases import CASES, Case


def weights_like(output: Tensor) -> Tensor:
    """Fixed, uneven weights, so that no symmetry of the loss hides an error."""
    return torch.cos(torch.arange(output[0].numel(), dtype=output.dtype) + 0.3).reshape(output[0].shape)


def example_losses(module: nn.Module, x: Tensor) -> Tensor:
    output = module(x)
    return ((output * weights_like(output)) ** 2 + output).flatten(1).sum(dim=1)


def observed_gram(module: nn.Module, x: Tensor, reduction: str) -> Tensor:
    losses_reduced = {"mean": torch.mean, "sum": torch.sum}[reduction]
    with GradientGram(module, loss_reduction=reduction) as gram:
        losses_reduced(example_losses(module, x)).backward()
    assert gram.coverage == 1.0
    return gram.gram()


def oracle(module: nn.Module, x: Tensor) -> Tensor:
    gradients = per_example_gradients(module, lambda m, i: example_losses(m, x[i : i + 1]).sum(), len(x))
    return gradients @ gradients.T


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch_size", [1, 2, 6])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gram_equals_one_by_one_autograd(case: Case, batch_size: int, reduction: str) -> None:
    torch.manual_seed(0)
    module = case.build().double()
    x = torch.randn(batch_size, *case.shape, dtype=torch.float64)
    expected = oracle(module, x)
    torch.testing.assert_close(
        observed_gram(module, x, reduction), expected, rtol=0, atol=1e-10 * float(expected.abs().max())
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_float32_gram_is_close_and_summed_in_float64(case: Case) -> None:
    torch.manual_seed(1)
    module = case.build()
    x = torch.randn(5, *case.shape)
    gram = observed_gram(module, x, "mean")
    expected = oracle(copy.deepcopy(module).double(), x.double())
    assert gram.dtype == torch.float64
    torch.testing.assert_close(gram, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 5),
    channels=st.integers(1, 3),
    out=st.integers(1, 4),
    size=st.integers(5, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    groups=st.integers(1, 2),
)
def test_convolutions_of_any_shape(
    batch: int,
    channels: int,
    out: int,
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    padding: int,
    mode: str,
    groups: int,
) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(
        channels * groups, out * groups, kernel, stride, padding, dilation, groups, padding_mode=mode
    ).double()
    x = torch.randn(batch, channels * groups, size, size, dtype=torch.float64)
    expected = oracle(module, x)
    torch.testing.assert_close(observed_gram(module, x, "mean"), expected, rtol=0, atol=1e-10 * float(expected.max()))


@pytest.mark.parametrize(  # torch's own instance norm does not run on an empty batch
    "case", [case for case in CASES if "instance" not in case.name], ids=lambda case: case.name
)
def test_empty_batch(case: Case) -> None:
    module = case.build()
    with GradientGram(module, loss_reduction="sum") as gram:
        output = module(torch.zeros(0, *case.shape))
        output.sum().backward()
    assert gram.gram().shape == (0, 0)


def test_token_roll_counterexample() -> None:
    """Two sequences, one a roll of the other, have EQUAL gradients; the flattened kernel of public code misses that."""
    torch.manual_seed(0)
    a = torch.randn(3, 7, 6, dtype=torch.float64)
    a[1] = a[0].roll(1, dims=0)
    module = nn.Linear(6, 5).double()
    with GradientGram(module, loss_reduction="sum") as gram:
        module(a).square().sum().backward()
    kernel = gram.gram()
    torch.testing.assert_close(kernel[0, 0], kernel[0, 1])
    scores = gnq_scores(kernel, damping=1e-2)
    assert float(scores[:2].max()) < 1.0
    outputs = module(a).detach()
    e = 2 * outputs
    flattened = (a.flatten(1) @ a.flatten(1).T) * (e.flatten(1) @ e.flatten(1).T)
    assert float(gnq_scores(flattened, damping=1e-2)[:2].max()) > 50.0


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_training_gradients_are_bitwise_untouched(reduction: str) -> None:
    torch.manual_seed(0)
    module = CASES[-1].build()
    x = torch.randn(5, 1, 4, 4)
    example_losses(module, x).mean().backward()
    plain = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    with GradientGram(module, loss_reduction=reduction):
        example_losses(module, x).mean().backward()
    assert all(torch.equal(a, p.grad) for a, p in zip(plain, module.parameters(), strict=True))


def hooks_on(module: nn.Module) -> int:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    on_modules = sum(len(getattr(m, kind)) for m in module.modules() for kind in kinds)
    return on_modules + sum(len(p._backward_hooks or {}) for p in module.parameters())


def test_nothing_is_left_on_the_module_even_after_an_exception() -> None:
    module = CASES[-1].build()
    attributes = {name: set(vars(m)) for name, m in module.named_modules()}
    with pytest.raises(RuntimeError, match="mid-way"), GradientGram(module):
        module(torch.randn(2, 1, 4, 4))
        raise RuntimeError("mid-way")
    assert hooks_on(module) == 0
    assert {name: set(vars(m)) for name, m in module.named_modules()} == attributes
    with GradientGram(module) as gram:
        module(torch.randn(2, 1, 4, 4)).mean().backward()
    assert hooks_on(module) == 0
    assert gram.gram().shape == (2, 2)


def test_excluded_parameters_lower_the_coverage_only() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    with GradientGram(module, exclude=["0.*"]) as gram:
        module(torch.randn(5, 4)).mean().backward()
    assert gram.coverage == pytest.approx(8 / 23)
    assert all(p.requires_grad and p.grad is not None for p in module.parameters())


def test_a_subclass_with_another_forward_has_other_gradients() -> None:
    class Doubled(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    module, x = Doubled(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    torch.testing.assert_close(observed_gram(module, x, "mean"), oracle(module, x))


def test_batch_norm_in_train_mode_is_refused() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    with pytest.raises(BatchCouplingError, match=r"'1' \(BatchNorm2d\).*GroupNorm"), GradientGram(module):
        pass


class Unseen(torch.autograd.Function):
    """A linear map that no torch function sees."""

    @staticmethod
    def forward(ctx: object, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: object, e: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return (e.to(x.dtype) @ weight).to(x.dtype), e.to(x.dtype).T @ x


class Hidden(nn.Module):
    """Uses a layer's weight where it is not seen, alone or in addition to the layer itself."""

    def __init__(self, also_properly: bool) -> None:
        super().__init__()
        self.fc, self.also_properly = nn.Linear(4, 4, bias=False), also_properly

    def forward(self, x: Tensor) -> Tensor:
        x = Unseen.apply(x, self.fc.weight)
        return self.fc(torch.tanh(x)) if self.also_properly else x


@pytest.mark.parametrize(("also_properly", "words"), [(False, "contributed nothing"), (True, "do not add up")])
def test_a_parameter_used_unseen_is_an_error(also_properly: bool, words: str) -> None:
    module = nn.Sequential(Hidden(also_properly), nn.Linear(4, 2))
    with pytest.raises(IncompleteGramError, match=words), GradientGram(module):
        module(torch.randn(3, 4)).square().sum().backward()


def test_without_verification_a_silent_parameter_is_still_an_error() -> None:
    module = nn.Sequential(Hidden(also_properly=False), nn.Linear(4, 2))
    with (
        pytest.raises(IncompleteGramError, match=r"'0\.fc\.weight' received a gradient but contributed nothing"),
        GradientGram(module, verify=False),
    ):
        module(torch.randn(3, 4)).sum().backward()


class Mixed(nn.Module):
    """Time and batch merged in the wrong order: rows that cannot be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x.transpose(0, 1).reshape(-1, 4))
        return self.outer(x.reshape(3, -1, 4).transpose(0, 1).reshape(-1, 12))


def test_rows_that_are_not_examples_are_an_error() -> None:
    module = Mixed()
    with pytest.raises(IncompleteGramError, match="'inner' received 6 rows"), GradientGram(module):
        module(torch.randn(2, 3, 4)).sum().backward()


def test_a_second_pass_in_one_context_is_an_error() -> None:
    module = nn.Linear(3, 2)
    with pytest.raises(IncompleteGramError, match="used again"), GradientGram(module):
        module(torch.randn(2, 3)).sum().backward()
        module(torch.randn(2, 3)).sum().backward()


def test_nothing_observed_is_an_error() -> None:
    with GradientGram(nn.Linear(3, 2)) as gram, pytest.raises(IncompleteGramError, match="no layer of the module ran"):
        gram.gram()
    with pytest.raises(DisclosureError, match="once the context has been entered"):
        _ = GradientGram(nn.Linear(3, 2)).coverage
    with pytest.raises(ValueError, match="loss_reduction"):
        GradientGram(nn.Linear(3, 2), loss_reduction="none")  # type: ignore[arg-type]


def test_loss_scale_is_undone() -> None:
    torch.manual_seed(0)
    module, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    with GradientGram(module) as gram:
        (module(x).square().sum(dim=1).mean() * 1024.0).backward()
    expected = oracle_of_square(module, x)
    torch.testing.assert_close(gram.gram(loss_scale=1024.0), expected)


def oracle_of_square(module: nn.Module, x: Tensor) -> Tensor:
    gradients = per_example_gradients(module, lambda m, i: m(x[i : i + 1]).square().sum(), len(x))
    return gradients @ gradients.T


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_weighted_gradient_equals_the_sum_of_single_gradients(case: Case, reduction: str) -> None:
    torch.manual_seed(0)
    module = case.build().double()
    x = torch.randn(4, *case.shape, dtype=torch.float64)
    weights = torch.tensor([0.0, 1.0, -0.5, 2.0])
    with GradientGram(module, loss_reduction=reduction, keep_terms=True) as gram:
        {"mean": torch.mean, "sum": torch.sum}[reduction](example_losses(module, x)).backward()
        summed = gram.weighted_gradient(weights)
    single = per_example_gradients(module, lambda m, i: example_losses(m, x[i : i + 1]).sum(), 4)
    by_parameter = {id(p): g for p, g in summed}
    trainable = [p for p in module.parameters() if p.requires_grad]
    flat = torch.cat([by_parameter.get(id(p), torch.zeros_like(p)).flatten() for p in trainable])
    torch.testing.assert_close(flat, weights.double() @ single)


def test_backward_outside_the_context_is_an_error() -> None:
    module = nn.Linear(3, 2)
    with pytest.raises(IncompleteGramError, match="no gradient has arrived"), GradientGram(module):
        loss = module(torch.randn(2, 3)).sum()
    loss.backward()
    with GradientGram(module) as gram:
        loss = module(torch.randn(2, 3)).sum()
        with pytest.raises(IncompleteGramError, match="no gradient has arrived"):
            gram.gram()
        loss.backward()
        assert float(gram.gram().diagonal().min()) > 0  # the early call spoiled nothing


def test_a_failing_gram_leaves_no_hooks() -> None:
    module = nn.Sequential(Hidden(also_properly=True), nn.Linear(4, 2))
    with pytest.raises(IncompleteGramError), GradientGram(module):
        module(torch.randn(3, 4)).square().sum().backward()
    assert hooks_on(module) == 0


def test_verification_is_not_done_where_everything_is_zero() -> None:
    module = nn.Sequential(Hidden(also_properly=True), nn.Linear(4, 2))
    nn.init.zeros_(module[1].weight)
    with GradientGram(module) as gram:
        module(torch.randn(3, 4)).sum().backward()
    assert not gram.verified
    fine = nn.Linear(4, 2)
    with GradientGram(fine) as gram:
        fine(torch.randn(3, 4)).sum().backward()
    assert gram.verified


def test_low_precision_does_not_switch_the_check_off() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Hidden(also_properly=True), nn.Linear(4, 2))
    with pytest.raises(IncompleteGramError, match="do not add up"), GradientGram(module):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = module(3 * torch.randn(6, 4)).float().square().sum()
        loss.backward()


def test_bfloat16_autocast_is_close() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
    x = torch.randn(6, 8)
    with GradientGram(module, loss_reduction="sum") as gram, torch.autocast("cpu", dtype=torch.bfloat16):
        module(x).float().square().sum().backward()
    expected = oracle_of_square(module, x)
    torch.testing.assert_close(gram.gram(), expected.double(), rtol=0, atol=5e-2 * float(expected.max()))


def test_parameters_unfrozen_too_late_are_an_error() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    module[0].requires_grad_(False)
    with pytest.raises(IncompleteGramError, match=r"0\.weight, 0\.bias became trainable"), GradientGram(module):
        module[0].requires_grad_(True)
        module(torch.randn(3, 4)).sum().backward()


def test_frozen_batch_norm_in_half_precision() -> None:
    norm = nn.BatchNorm1d(4).eval().to(torch.bfloat16)
    norm.running_mean.normal_()
    x = torch.randn(5, 4, dtype=torch.bfloat16)
    expected = oracle_of_square(norm, x).double()
    with GradientGram(norm, "sum") as gram:
        norm(x).square().sum().backward()
    torch.testing.assert_close(gram.gram(), expected, rtol=0, atol=3e-2 * float(expected.max()))


def test_weight_zero_leaves_out_even_a_nan() -> None:
    module = nn.Linear(3, 2)
    x = torch.randn(3, 3)
    x[1] = float("nan")
    with GradientGram(module, "sum", keep_terms=True, verify=False) as gram:
        module(x).sum().backward()
        summed = gram.weighted_gradient(torch.tensor([1.0, 0.0, 1.0]))
    assert all(bool(torch.isfinite(g).all()) for _, g in summed)
