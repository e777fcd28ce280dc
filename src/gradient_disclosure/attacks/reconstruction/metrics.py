"""How close reconstructed images are to the originals."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from skimage.metrics import structural_similarity
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.matching import check_pair
from gradient_disclosure.attacks.reconstruction.perceptual import PerceptualDistance
from gradient_disclosure.attacks.reconstruction.scale import InputScale

_SSIM_WINDOW = 7


def reconstruction_metrics(
    reconstructed: Tensor,
    original: Tensor,
    *,
    value_range: tuple[float, float],
    lpips: PerceptualDistance | None,
) -> list[dict[str, float]]:
    """MSE, PSNR, SSIM and, where its weights are at hand, LPIPS of each pair of images.

    Images are rescaled so that ``value_range`` becomes [0, 1] before MSE, PSNR and SSIM, and [-1, 1] before LPIPS;
    hence psnr = −10 log₁₀ mse. Pair the images first (``match_to_originals``) where a batch was reconstructed.

    Args:
        reconstructed: (B, C, H, W), at least 3 pixels high and wide.
        original: (B, C, H, W).
        value_range: smallest and largest pixel value.
        lpips: the perceptual distance; None leaves its key out.

    Returns:
        For each image a dictionary: ``mse``; ``psnr`` in decibels, infinite for an exact match; ``ssim`` (scikit-image,
        uniform window of 7 pixels, or the largest odd one that fits); ``lpips``, or ``lpips_at_64px`` where the images
        had to be enlarged for it.

    Raises:
        AttackInputError: shapes that differ, are not images or are too small; NaN or infinity; an empty value range.

    Example:
        >>> black, gray = torch.zeros(1, 1, 8, 8), torch.full((1, 1, 8, 8), 0.1)
        >>> scores = reconstruction_metrics(gray, black, value_range=(0.0, 1.0), lpips=None)[0]
        >>> round(scores["mse"], 6), round(scores["psnr"], 6)
        (0.01, 20.0)
    """
    check_pair(reconstructed, original)
    if original.ndim != 4 or min(original.shape[2:]) < 3:
        raise AttackInputError(
            f"images must be (B, C, H, W), at least 3 × 3, but their shape is {tuple(original.shape)}."
        )
    scale = InputScale.of(value_range)
    found, truth = (
        (images.detach().to("cpu", torch.float64) - scale.center) / scale.half_width
        for images in (reconstructed, original)
    )
    rows = [_pixel_metrics(a, b) for a, b in zip(_unit(found), _unit(truth), strict=True)]
    if lpips is not None:
        for row, distance in zip(rows, lpips(found, truth).tolist(), strict=True):
            row[lpips.key(original.shape[2], original.shape[3])] = distance
    return rows


def _unit(images: Tensor) -> npt.NDArray[np.float64]:
    """Images in [-1, 1] as an array in [0, 1]."""
    array: npt.NDArray[np.float64] = ((images + 1) / 2).numpy()
    return array


def _pixel_metrics(found: npt.NDArray[np.float64], truth: npt.NDArray[np.float64]) -> dict[str, float]:
    """MSE, PSNR and SSIM of one image (C, H, W) in [0, 1]."""
    mse = float(np.mean((found - truth) ** 2))
    smallest = min(truth.shape[1:])
    window = min(_SSIM_WINDOW, smallest - 1 + smallest % 2)
    ssim = structural_similarity(  # type: ignore[no-untyped-call]
        found, truth, win_size=window, data_range=1.0, channel_axis=0
    )
    return {"mse": mse, "psnr": -10 * math.log10(mse) if mse > 0 else math.inf, "ssim": float(ssim)}
