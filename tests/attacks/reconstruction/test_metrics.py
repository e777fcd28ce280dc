from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import nn

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import PerceptualDistance, reconstruction_metrics

from .cases import digits


def pairs(batch: int, channels: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth images in [-2, 6] and noisy versions of them."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(batch, channels, 3, 3, generator=generator)
    original = 8 * nn.functional.interpolate(coarse, size=(size, size), mode="bilinear") - 2
    noise = torch.randn(original.shape, generator=generator)
    return (original + 0.3 * noise).clamp(-2, 6), original


@pytest.mark.parametrize(("channels", "size", "window"), [(1, 8, 7), (3, 16, 7), (1, 6, 5), (3, 5, 5), (1, 3, 3)])
def test_metrics_are_scikit_images_in_the_images_own_units(channels: int, size: int, window: int) -> None:
    found, truth = pairs(2, channels, size)
    rows = reconstruction_metrics(found, truth, value_range=(-2.0, 6.0), lpips=None)
    for row, a, b in zip(rows, found.double().numpy(), truth.double().numpy(), strict=True):
        assert set(row) == {"mse", "psnr", "ssim"}
        assert row["mse"] == pytest.approx(np.mean((a - b) ** 2) / 64)
        assert row["psnr"] == pytest.approx(peak_signal_noise_ratio(b, a, data_range=8.0))
        # SSIM's luminance term sees an offset: like the metric, start the range at 0.
        expected = structural_similarity(a + 2, b + 2, data_range=8.0, channel_axis=0, win_size=window)
        assert row["ssim"] == pytest.approx(expected)


def test_psnr_is_exactly_the_logarithm_of_mse() -> None:
    for row in reconstruction_metrics(*pairs(3, 1, 8), value_range=(-2.0, 6.0), lpips=None):
        assert row["psnr"] == -10 * math.log10(row["mse"])


def test_an_exact_match() -> None:
    images, _ = digits(2)
    for row in reconstruction_metrics(images, images, value_range=(0.0, 1.0), lpips=None):
        assert row == {"mse": 0.0, "psnr": math.inf, "ssim": pytest.approx(1.0)}


def test_the_opposite_of_black_is_as_wrong_as_can_be() -> None:
    black = torch.zeros(1, 1, 8, 8)
    row = reconstruction_metrics(1 - black, black, value_range=(0.0, 1.0), lpips=None)[0]
    assert (row["mse"], row["psnr"]) == (1.0, 0.0)
    assert row["ssim"] < 0.01


class MeanDifference(nn.Module):
    """Stands in for LPIPS: shows what the metric hands to it."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        self.shape = first.shape
        return (first - second).abs().mean((1, 2, 3), keepdim=True)


@pytest.mark.parametrize(
    ("size", "key", "seen"), [(8, "lpips_at_64px", 64), (31, "lpips_at_64px", 64), (32, "lpips", 32)]
)
def test_lpips_key_names_the_enlargement_and_inputs_are_scaled(size: int, key: str, seen: int) -> None:
    network = MeanDifference()
    low, high = torch.full((2, 1, size, size), -2.0), torch.full((2, 1, size, size), 6.0)
    rows = reconstruction_metrics(low, high, value_range=(-2.0, 6.0), lpips=PerceptualDistance(network))
    assert [row[key] for row in rows] == [2.0, 2.0]  # from -1 to 1
    assert set(rows[0]) == {"mse", "psnr", "ssim", key}
    assert network.shape == (2, 3, seen, seen)


@pytest.mark.parametrize(
    ("found", "truth", "message"),
    [
        (torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 9), "their shapes are"),
        (torch.zeros(1, 64), torch.zeros(1, 64), r"images must be \(B, C, H, W\)"),
        (torch.zeros(1, 1, 2, 8), torch.zeros(1, 1, 2, 8), "at least 3 × 3"),
        (torch.full((1, 1, 8, 8), torch.nan), torch.zeros(1, 1, 8, 8), "reconstructed holds NaN"),
    ],
)
def test_bad_input_is_refused(found: torch.Tensor, truth: torch.Tensor, message: str) -> None:
    with pytest.raises(AttackInputError, match=message):
        reconstruction_metrics(found, truth, value_range=(0.0, 1.0), lpips=None)
