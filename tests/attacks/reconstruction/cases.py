"""Real digits, small networks and what a victim releases of them; shared by the tests of this folder."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from gradient_disclosure.attacks.reconstruction import (
    Reconstruction,
    ReconstructionAttack,
    ReleasedGradient,
    reconstruction_metrics,
)

UNIT = (0.0, 1.0)


def digits(count: int) -> tuple[Tensor, Tensor]:
    """The first handwritten digits: (count, 1, 8, 8) float32 in [0, 1] and (count,) labels."""
    data = load_digits()
    images = torch.from_numpy(data.images[:count] / 16).float()[:, None]
    return images, torch.from_numpy(data.target[:count]).long()


def convolutional(activation: type[nn.Module], seed: int = 0) -> nn.Module:
    """Two convolutions and a linear layer, 9 930 parameters, at initialization."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            activation(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            activation(),
            nn.Flatten(),
            nn.Linear(512, 10),
        )


def linear(features: int, classes: int, *, bias: bool = True, seed: int = 0) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Linear(features, classes, bias=bias)


def plain_gradient(module: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    """Gradient of the mean cross entropy by ``backward``, without any code under test."""
    module.zero_grad()
    F.cross_entropy(module(inputs), labels).backward()
    gradients = tuple(p.grad.clone() for p in module.parameters() if p.grad is not None)
    module.zero_grad()
    return gradients


def clipped(gradients: tuple[Tensor, ...], clip_norm: float) -> tuple[Tensor, ...]:
    norm = torch.cat([g.flatten() for g in gradients]).norm().item()
    return tuple(g * min(1.0, clip_norm / norm) for g in gradients)


def noisy(gradients: tuple[Tensor, ...], std: float, seed: int = 0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(g + std * torch.randn(g.shape, generator=generator) for g in gradients)


def attack_digits(
    attack: ReconstructionAttack, module: nn.Module, released: ReleasedGradient, seed: int = 0
) -> Reconstruction:
    """The attack on a gradient of digits; the truth is not among its arguments."""
    return attack.reconstruct(
        module,
        released,
        shape=(1, 8, 8),
        num_classes=10,
        value_range=UNIT,
        generator=torch.Generator().manual_seed(seed),
    )


def ssim(reconstructed: Tensor, original: Tensor) -> list[float]:
    return [row["ssim"] for row in reconstruction_metrics(reconstructed, original, value_range=UNIT, lpips=None)]
