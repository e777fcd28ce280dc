"""Real architectures, unmodified, against the gradients of one ordinary run by autograd alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure import GradientGram
from gradient_disclosure.errors import BatchCouplingError
from tests.gram.architectures import (
    ARCHITECTURES,
    CLASSES,
    Architecture,
    Batch,
    architecture,
    randomize,
)
from tests.gram.oracle import (
    assert_same_gram,
    expected_gram,
    footprint,
    inner_products,
    observed_gram,
    seeded,
    share_gradients,
)

every_architecture = pytest.mark.parametrize("case", ARCHITECTURES, ids=lambda case: case.name)


def prepared(case: Architecture, dtype: torch.dtype) -> tuple[nn.Module, Batch]:
    return case.model(dtype), case.inputs(dtype)


def exactness(case: Architecture) -> float:
    """Float32 inside a float64 model: K moves by up to 1e-7 when the loss is merely multiplied by 0.7 and divided."""
    return 1e-6 if case.float32_inside else 1e-9


@every_architecture
def test_shares_add_up_to_the_models_own_loss(case: Architecture) -> None:
    model, batch = prepared(case, torch.float64)
    with seeded():
        shares, own = case.run(model, batch)
    assert shares.shape == batch["labels"].shape[:1]
    torch.testing.assert_close(float(shares.detach().sum()), float(own.detach()), rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", [case for case in ARCHITECTURES if not case.random], ids=lambda case: case.name)
def test_the_oracle_agrees_with_examples_run_alone(case: Architecture) -> None:
    model, batch = prepared(case, torch.float64)
    together = expected_gram(model, lambda: case.run(model, batch)[0])

    def labelled(labels: Tensor) -> int:
        return int(((labels[:, 1:] if case.shift else labels) != -100).sum())

    alone, size = [], len(batch["labels"])
    for i in range(size):
        example = {key: value[i : i + 1] for key, value in batch.items()}
        fraction = labelled(example["labels"]) / labelled(batch["labels"])
        share = case.run(model, example)[0]
        if fraction == 0:  # 0/0 tokens: no loss, no gradient
            alone.append([torch.zeros_like(p) for p in model.parameters() if p.requires_grad])
        else:
            alone += share_gradients(model, share * fraction)
    assert_same_gram(together, inner_products(alone) * size**2, relative=1e-10)


@every_architecture
def test_gram_in_float64(case: Architecture) -> None:
    model, batch = prepared(case, torch.float64)
    expected = expected_gram(model, lambda: case.run(model, batch)[0])
    observed = observed_gram(model, lambda: case.run(model, batch)[0].sum())
    assert_same_gram(observed, expected, exactness(case))


@every_architecture
def test_gram_in_float32_of_the_models_own_loss(case: Architecture) -> None:
    model, batch = prepared(case, torch.float32)
    expected = expected_gram(model, lambda: case.run(model, batch)[0])
    assert_same_gram(observed_gram(model, lambda: case.run(model, batch)[1]), expected, relative=1e-4)


@every_architecture
def test_training_is_untouched_and_nothing_remains(case: Architecture) -> None:
    model, batch = prepared(case, torch.float32)
    with seeded():
        case.run(model, batch)[1].backward()
    plain = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    before = footprint(model)
    with GradientGram(model) as gram, seeded():
        case.run(model, batch)[1].backward()
    assert gram.coverage == 1.0
    assert footprint(model) == before
    for name, p in model.named_parameters():
        same = p.grad is plain[name] if plain[name] is None else torch.equal(p.grad, plain[name])
        assert same, f"{name}: the gradient is not the plain run's"


@pytest.mark.parametrize("name", ["gpt2, dropout", "t5, padded", "swin", "torchvision vit", "convnext"])
def test_nothing_remains_after_an_exception(name: str) -> None:
    case = architecture(name)
    model, batch = prepared(case, torch.float32)
    case.run(model, batch)
    before = footprint(model)
    with pytest.raises(RuntimeError, match="mid-way"), GradientGram(model):
        case.run(model, batch)
        raise RuntimeError("mid-way")
    assert footprint(model) == before


@pytest.mark.parametrize("name", ["gpt2, padded", "t5", "t5, dropout", "bert masked lm", "torchvision vit", "convnext"])
def test_bfloat16_autocast(name: str) -> None:
    case = architecture(name)
    model, batch = prepared(case, torch.float32)
    autocast = partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    expected = expected_gram(model, lambda: case.run(model, batch)[0], autocast)
    assert_same_gram(observed_gram(model, lambda: case.run(model, batch)[0].sum(), autocast), expected, relative=5e-2)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "name", ["gpt2, padded", "gpt2, dropout, T = B", "llama", "llama, T = B, padded", "bert masked lm, dropout"]
)
def test_gradient_checkpointing(name: str, reentrant: bool) -> None:
    """Checkpointing draws the same masks again, so the model without it gives the expected matrix."""
    case = architecture(name)
    model, batch = prepared(case, torch.float64)
    expected = expected_gram(model, lambda: case.run(model, batch)[0])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    assert_same_gram(observed_gram(model, lambda: case.run(model, batch)[0].sum()), expected, exactness(case))
    torch.manual_seed(0)
    before = footprint(model)
    with GradientGram(model):
        case.run(model, batch)[1].backward()
    assert footprint(model) == before


def test_checkpointing_is_really_on() -> None:
    case = architecture("gpt2")
    model, batch = prepared(case, torch.float32)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    runs: list[int] = []
    handle = model.transformer.h[0].ln_1.register_forward_hook(lambda *_: runs.append(1))
    case.run(model, batch)[1].backward()
    handle.remove()
    assert len(runs) == 2


def test_a_batch_norm_network_is_refused_with_its_replacement() -> None:
    from torchvision.models import resnet18

    model = resnet18(num_classes=CLASSES)
    before = footprint(model)
    with pytest.raises(BatchCouplingError, match=r"'bn1' \(BatchNorm2d\).*GroupNorm"), GradientGram(model):
        pass
    assert footprint(model) == before


def full_vit() -> nn.Module:
    from torchvision.models import vit_b_16

    return vit_b_16()


def full_convnext() -> nn.Module:
    from torchvision.models import convnext_tiny

    return convnext_tiny()


def full_swin() -> nn.Module:
    from torchvision.models import swin_t

    return swin_t()


def full_resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(norm_layer=lambda channels: nn.GroupNorm(32, channels))


@pytest.mark.slow
@pytest.mark.parametrize("build", [full_vit, full_convnext, full_swin, full_resnet])
def test_full_size(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = randomize(build().train())
    images, labels = torch.randn(2, 3, 224, 224), torch.tensor([3, 700])

    def losses() -> Tensor:
        return F.cross_entropy(model(images), labels, reduction="none")

    expected = expected_gram(model, lambda: losses() / 2)
    assert_same_gram(observed_gram(model, lambda: losses().mean()), expected, relative=1e-4)
