from __future__ import annotations

import pytest
import torch
from torch import nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import DLG, IDLG, InvertingGradients, ReleasedGradient
from gradient_disclosure.attacks.reconstruction.attack import ReconstructionAttack
from gradient_disclosure.attacks.reconstruction.attacker import Attacker, check_released
from gradient_disclosure.errors import NonFiniteGradientError

from .cases import attack_digits, clipped, convolutional, digits, linear, plain_gradient

every_attack = pytest.mark.parametrize("attack", [DLG(), IDLG(), InvertingGradients()], ids=lambda a: a.name)


def test_the_attackers_gradient_is_the_victims() -> None:
    module = convolutional(nn.Tanh)
    inputs, labels = digits(3)
    gradients = plain_gradient(module, inputs, labels)
    attacker = Attacker(module, ReleasedGradient(gradients, batch_size=3))
    torch.testing.assert_close(attacker.gradient(inputs.double(), labels), attacker.released, rtol=1e-4, atol=1e-6)


def test_the_attackers_clipped_gradient_is_the_mean_of_the_clipped_gradients() -> None:
    module = convolutional(nn.Tanh).double()
    inputs, labels = (tensor[:3] for tensor in digits(3))
    inputs = inputs.double()
    singles = [plain_gradient(module, inputs[i : i + 1], labels[i : i + 1]) for i in range(3)]
    norms = sorted(torch.cat([g.flatten() for g in single]).norm().item() for single in singles)
    clip_norm = (norms[0] + norms[1]) / 2  # one gradient stays below it, two are clipped
    mean = tuple(torch.stack(parts).mean(0) for parts in zip(*(clipped(s, clip_norm) for s in singles), strict=True))
    attacker = Attacker(module, ReleasedGradient(mean, batch_size=3, clip_norm=clip_norm))
    torch.testing.assert_close(attacker.gradient(inputs, labels), attacker.released, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("clip_norm", [0.05, 100.0])
def test_the_clipped_gradient_is_differentiable(clip_norm: float) -> None:
    layer = linear(2, 3).double()
    attacker = Attacker(layer, ReleasedGradient((torch.ones(3, 2), torch.ones(3)), 1, clip_norm=clip_norm))
    inputs = torch.tensor([[0.3, -0.7]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: attacker.gradient(x, torch.tensor([1])), inputs)


def test_frozen_parameters_and_buffers_take_part_in_the_forward_pass() -> None:
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 3)).eval()
    module[0].running_mean += 3
    module[0].weight.requires_grad_(False)
    inputs, labels = torch.tensor([[1.0, 2.0]]), torch.tensor([1])
    gradients = plain_gradient(module, inputs, labels)
    assert len(gradients) == 3
    attacker = Attacker(module, ReleasedGradient(gradients, batch_size=1))
    torch.testing.assert_close(
        attacker.gradient(inputs.double(), labels).float(), torch.cat([*map(torch.flatten, gradients)])
    )


@every_attack
def test_the_gradient_of_another_model_is_refused(attack: ReconstructionAttack) -> None:
    inputs, labels = digits(1)
    module = convolutional(nn.Tanh)
    fewer = plain_gradient(nn.Sequential(nn.Flatten(), linear(64, 10)), inputs, labels)
    with pytest.raises(AttackInputError, match="2 gradients were released, but Sequential has 6"):
        attack_digits(attack, module, ReleasedGradient(fewer, batch_size=1))
    other = [*plain_gradient(module, inputs, labels)]
    other[2] = other[2].transpose(0, 1)
    with pytest.raises(
        AttackInputError, match=r"released for 2\.weight has shape \(16, 32, 3, 3\), but .* \(32, 16, 3, 3\)"
    ):
        attack_digits(attack, module, ReleasedGradient(tuple(other), batch_size=1))


@every_attack
def test_a_zero_gradient_is_refused(attack: ReconstructionAttack) -> None:
    module = convolutional(nn.Tanh)
    zeros = tuple(torch.zeros_like(parameter) for parameter in module.parameters())
    with pytest.raises(AttackInputError, match="every released gradient is zero: nothing was released"):
        attack_digits(attack, module, ReleasedGradient(zeros, batch_size=1))


@every_attack
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_non_finite_gradient_is_refused(attack: ReconstructionAttack, value: float) -> None:
    module = convolutional(nn.Tanh)
    gradients = [torch.ones_like(parameter) for parameter in module.parameters()]
    gradients[5][3] = value
    with pytest.raises(NonFiniteGradientError, match=r"released for 5\.bias holds NaN or infinity"):
        attack_digits(attack, module, ReleasedGradient(tuple(gradients), batch_size=1))


def test_an_empty_batch_is_refused() -> None:
    with pytest.raises(AttackInputError, match="batch_size of a released gradient must be at least 1, not 0"):
        check_released(linear(1, 1), ReleasedGradient((torch.ones(1, 1), torch.ones(1)), batch_size=0))
