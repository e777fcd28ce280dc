from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from gradient_disclosure.defenses.dp_sgd_release import release_dp_sgd
from gradient_disclosure.errors import UnsupportedTrainingError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def gradients_one_by_one(batch_size: int) -> list[list[Tensor]]:
    """Gradients of each example, one after the other: [example][parameter]."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(batch_size, 3, dtype=torch.float64), torch.arange(batch_size) % 2
    losses = [nn.functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]) for i in range(batch_size)]
    return [list(torch.autograd.grad(loss, list(net.parameters()))) for loss in losses]


@pytest.mark.parametrize("batch_size", [1, 5])
@pytest.mark.parametrize("clip_norm", [0.1, 0.9, 50.0])
def test_without_noise_it_is_the_mean_of_the_clipped_gradients(batch_size: int, clip_norm: float) -> None:
    examples = gradients_one_by_one(batch_size)
    stacked = [torch.stack(parameter) for parameter in zip(*examples, strict=True)]
    released = release_dp_sgd(stacked, clip_norm=clip_norm, noise_multiplier=0.0, generator=generator())
    expected = [torch.zeros_like(g) for g in examples[0]]
    for gradients in examples:
        norm = sum(float(g.square().sum()) for g in gradients) ** 0.5
        for total, g in zip(expected, gradients, strict=True):
            total += g * min(1.0, clip_norm / (norm + 1e-6)) / batch_size
    for got, want in zip(released.gradients, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-15)
    assert (released.batch_size, released.clip_norm, released.noise_std) == (batch_size, clip_norm, 0.0)


def test_noise_has_the_deviation_that_is_stated() -> None:
    zero = [torch.zeros(4, 100, 50), torch.zeros(4, 3000)]
    released = release_dp_sgd(zero, clip_norm=2.0, noise_multiplier=1.5, generator=generator())
    assert released.noise_std == 1.5 * 2.0 / 4
    for noise in released.gradients:
        low, high = stats.chi2.interval(1 - 1e-6, noise.numel())
        assert low <= float((noise / 0.75).double().square().sum()) <= high
        assert abs(float(noise.double().mean())) < 5 * 0.75 / noise.numel() ** 0.5


def test_noise_is_reproducible_and_from_the_generator_alone() -> None:
    def release(seed: int) -> Tensor:
        return release_dp_sgd(
            [torch.zeros(1, 5)], clip_norm=1.0, noise_multiplier=1.0, generator=generator(seed)
        ).gradients[0]

    before = torch.get_rng_state()
    assert torch.equal(release(0), release(0))
    assert not torch.equal(release(0), release(1))
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_to_release() -> None:
    for gradients in ([], [torch.zeros(0, 5)]):
        with pytest.raises(UnsupportedTrainingError, match="no gradient to release"):
            release_dp_sgd(gradients, clip_norm=1.0, noise_multiplier=1.0, generator=generator())
