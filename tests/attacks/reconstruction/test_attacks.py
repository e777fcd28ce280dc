"""DLG, iDLG and Inverting Gradients on real digits."""

from __future__ import annotations

import inspect
import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import (
    DLG,
    IDLG,
    InvertingGradients,
    ReconstructionAttack,
    ReleasedGradient,
    gradient_of_batch,
    match_to_originals,
)

from .cases import UNIT, attack_digits, clipped, convolutional, digits, linear, noisy, plain_gradient, ssim

ATTACKS = [DLG(), IDLG(), InvertingGradients()]
QUICK = [DLG(30, 2), IDLG(30, 2), InvertingGradients(30, 2)]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: a.name)
every_quick_attack = pytest.mark.parametrize("attack", QUICK, ids=lambda a: a.name)


@every_attack
@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.ReLU])
def test_the_undefended_gradient_at_initialization_reconstructs(
    attack: ReconstructionAttack, activation: type[nn.Module]
) -> None:
    module = convolutional(activation)
    inputs, labels = digits(3)
    for i in range(3):
        released = ReleasedGradient(plain_gradient(module, inputs[i : i + 1], labels[i : i + 1]), batch_size=1)
        result = attack_digits(attack, module, released)
        assert ssim(result.inputs, inputs[i : i + 1])[0] > 0.9
        assert result.labels.tolist() == labels[i : i + 1].tolist()
        assert not result.diverged


@every_attack
def test_strong_noise_defeats_the_attack(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(2)
    for i in range(2):
        gradients = noisy(plain_gradient(module, inputs[i : i + 1], labels[i : i + 1]), std=3.0, seed=i)
        result = attack_digits(attack, module, ReleasedGradient(gradients, batch_size=1, noise_std=3.0))
        assert ssim(result.inputs, inputs[i : i + 1])[0] < 0.5
        assert UNIT[0] <= result.inputs.min() <= result.inputs.max() <= UNIT[1]


def test_the_attacker_adapts_to_clipping() -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(1)
    gradients = clipped(plain_gradient(module, inputs, labels), clip_norm=0.1)
    adaptive = attack_digits(IDLG(), module, ReleasedGradient(gradients, batch_size=1, clip_norm=0.1))
    assert ssim(adaptive.inputs, inputs)[0] > 0.9
    # DLG could make up for the lost norm with a soft label; iDLG's is hard.
    unaware = attack_digits(IDLG(), module, ReleasedGradient(gradients, batch_size=1))
    assert ssim(unaware.inputs, inputs)[0] < 0.5
    assert unaware.loss > 1e-3 > adaptive.loss


@pytest.mark.parametrize("attack", [DLG(), InvertingGradients()], ids=lambda a: a.name)
@pytest.mark.parametrize("known", [False, True])
def test_a_batch_reconstructs_up_to_its_order(attack: DLG | InvertingGradients, known: bool) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(2)
    result = attack.reconstruct(
        module,
        ReleasedGradient(plain_gradient(module, inputs, labels), batch_size=2),
        shape=(1, 8, 8),
        num_classes=10,
        value_range=UNIT,
        generator=torch.Generator().manual_seed(0),
        labels=labels if known else None,
    )
    order = match_to_originals(result.inputs, inputs)
    assert min(ssim(result.inputs[order], inputs)) > 0.9
    assert torch.equal(result.labels[order], labels)


def test_idlg_is_for_single_examples() -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(2)
    with pytest.raises(AttackInputError, match="the released batch has 2: use DLG"):
        attack_digits(IDLG(), module, ReleasedGradient(plain_gradient(module, inputs, labels), batch_size=2))


@every_attack
def test_tabular_inputs_without_a_value_range(attack: ReconstructionAttack) -> None:
    module = nn.Sequential(linear(5, 16), nn.Tanh(), linear(16, 3, seed=1))
    inputs = torch.tensor([[2.5, -1.0, 0.0, 0.3, -3.0]])
    result = attack.reconstruct(
        module,
        ReleasedGradient(plain_gradient(module, inputs, torch.tensor([1])), batch_size=1),
        shape=(5,),
        num_classes=3,
        value_range=None,
        generator=torch.Generator().manual_seed(0),
    )
    torch.testing.assert_close(result.inputs, inputs, atol=0.05, rtol=0)


def test_another_value_range_gives_the_same_reconstruction_in_its_units() -> None:
    plain = convolutional(nn.Tanh)

    class Shifted(nn.Module):
        """Takes inputs in [-3, 5] instead of [0, 1]."""

        def __init__(self) -> None:
            super().__init__()
            self.body = plain

        def forward(self, inputs: Tensor) -> Tensor:
            return self.body((inputs + 3) / 8)

    inputs, labels = digits(1)
    released = ReleasedGradient(plain_gradient(plain, inputs, labels), batch_size=1)
    for attack in ATTACKS:
        result = attack.reconstruct(
            Shifted(),
            released,
            shape=(1, 8, 8),
            num_classes=10,
            value_range=(-3.0, 5.0),
            generator=torch.Generator().manual_seed(0),
        )
        expected = attack_digits(attack, plain, released)
        torch.testing.assert_close((result.inputs + 3) / 8, expected.inputs, atol=1e-3, rtol=0)


@every_quick_attack
def test_the_generator_decides_and_global_randomness_is_left_alone(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(1)
    released = ReleasedGradient(noisy(plain_gradient(module, inputs, labels), 0.5), batch_size=1, noise_std=0.5)
    before = torch.get_rng_state()
    first, again, other = (attack_digits(attack, module, released, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.inputs, again.inputs)
    assert first.restart_losses == again.restart_losses
    assert first.restart_losses != other.restart_losses


@every_quick_attack
def test_the_users_module_and_the_released_gradient_stay_as_they_were(attack: ReconstructionAttack) -> None:
    module = nn.Sequential(*convolutional(nn.Tanh), nn.Dropout(0.5)).train()
    module[1].eval()
    inputs, labels = digits(1)
    gradients = gradient_of_batch(module, inputs, labels)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    copies = [gradient.clone() for gradient in gradients]
    attack_digits(attack, module, ReleasedGradient(gradients, batch_size=1))
    assert all(torch.equal(module.state_dict()[name], value) for name, value in state.items())
    assert all(torch.equal(a, b) for a, b in zip(gradients, copies, strict=True))
    assert all(p.grad is None and p.dtype == torch.float32 and p.requires_grad for p in module.parameters())
    assert [m.training for m in module] == [True, False, True, True, True, True, True]


@every_attack
def test_it_works_in_inference_mode(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(1)
    with torch.inference_mode():
        released = ReleasedGradient(tuple(g.clone() for g in gradient_of_batch(module, inputs, labels)), batch_size=1)
        result = attack_digits(attack, module, released)
    assert ssim(result.inputs, inputs)[0] > 0.9


@every_quick_attack
def test_the_best_restart_is_chosen_by_the_attackers_own_loss(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(1)
    released = ReleasedGradient(noisy(plain_gradient(module, inputs, labels), 0.3), batch_size=1, noise_std=0.3)
    result = attack_digits(attack, module, released)
    assert len(result.restart_losses) == attack.restarts  # type: ignore[attr-defined]
    assert result.loss == min(result.restart_losses)
    assert len(set(result.restart_losses)) > 1


def test_no_argument_of_an_attack_carries_the_truth() -> None:
    parameters = inspect.signature(DLG().reconstruct).parameters
    sealed = {"module", "released", "shape", "num_classes", "value_range", "generator", "labels", "progress"}
    assert set(parameters) == sealed
    assert parameters["labels"].default is None
    assert set(ReleasedGradient.__dataclass_fields__) == {"gradients", "batch_size", "clip_norm", "noise_std"}


class NanWhen(nn.Module):
    """A linear layer whose first ``count`` evaluations with autograd on are NaN."""

    def __init__(self, count: float) -> None:
        super().__init__()
        self.layer = linear(64, 10)
        self.count = count

    def forward(self, inputs: Tensor) -> Tensor:
        logits = self.layer(inputs.flatten(1))
        if torch.is_grad_enabled() and self.count > 0:
            self.count -= 1
            return logits * torch.nan
        return logits


@every_attack
def test_nothing_but_nan_is_reported_as_diverged(attack: ReconstructionAttack) -> None:
    inputs, labels = digits(1)
    module = NanWhen(math.inf)
    gradients = plain_gradient(nn.Sequential(nn.Flatten(), module.layer), inputs, labels)
    result = attack_digits(attack, module, ReleasedGradient(gradients, batch_size=1))
    assert result.diverged
    assert torch.equal(result.inputs, torch.full((1, 1, 8, 8), 0.5))
    assert result.loss == math.inf
    assert result.labels.tolist() == ([-1] if attack.name == "dlg" else labels.tolist())


def test_a_restart_that_is_nan_is_discarded() -> None:
    inputs, labels = digits(1)
    module = NanWhen(1)
    gradients = plain_gradient(nn.Sequential(nn.Flatten(), module.layer), inputs, labels)
    result = attack_digits(InvertingGradients(), module, ReleasedGradient(gradients, batch_size=1))
    assert result.restart_losses[0] == math.inf
    assert math.isfinite(result.loss)
    assert not result.diverged
    assert ssim(result.inputs, inputs)[0] > 0.9


@every_attack
def test_shape_and_classes_must_be_the_modules(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(1)
    arguments: dict[str, Any] = {
        "module": module,
        "released": ReleasedGradient(plain_gradient(module, inputs, labels), batch_size=1),
        "value_range": UNIT,
        "generator": torch.Generator(),
    }
    with pytest.raises(AttackInputError, match="cannot be evaluated on float64 inputs of shape"):
        attack.reconstruct(shape=(3, 8, 8), num_classes=10, **arguments)
    with pytest.raises(AttackInputError, match=r"\(1, 12\), but gives \(1, 10\)|no trainable linear layer with 12"):
        attack.reconstruct(shape=(1, 8, 8), num_classes=12, **arguments)


@every_quick_attack
def test_progress_rises_to_one(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(1)
    fractions: list[float] = []
    attack.reconstruct(
        module,
        ReleasedGradient(noisy(plain_gradient(module, inputs, labels), 0.1), batch_size=1),
        shape=(1, 8, 8),
        num_classes=10,
        value_range=UNIT,
        generator=torch.Generator().manual_seed(0),
        progress=fractions.append,
    )
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert np.unique(fractions).size > 3


def test_attacks_are_frozen_and_named() -> None:
    assert [attack.name for attack in ATTACKS] == ["dlg", "idlg", "inverting_gradients"]
    with pytest.raises(FrozenInstanceError):
        DLG().restarts = 5  # type: ignore[misc]
    with pytest.raises(AttackInputError, match="idlg needs at least 1 iteration and 1 restart, not 0 and 3"):
        IDLG(iterations=0)
