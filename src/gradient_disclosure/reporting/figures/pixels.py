"""Images as matplotlib wants them, and small pictures with a caption in a grid."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from torch import Tensor

from gradient_disclosure.reporting.figures.style import INK, MUTED


def displayable(image: Tensor, value_range: tuple[float, float]) -> npt.NDArray[np.float32]:
    """Turn an image into RGB values, clamped to what a pixel can be.

    Args:
        image: (C, H, W) with 1 or 3 channels.
        value_range: smallest and largest value of a pixel.

    Returns:
        (H, W, 3) float32 in [0, 1].

    Example:
        >>> import torch
        >>> displayable(torch.tensor([[[-1.0, 1.0, 5.0]]]), (-1.0, 1.0))[0, :, 0].tolist()
        [0.0, 1.0, 1.0]
    """
    low, high = value_range
    scaled = ((image.detach().cpu().float() - low) / (high - low)).clamp(0.0, 1.0)
    if scaled.shape[0] == 1:
        scaled = scaled.expand(3, -1, -1)
    return np.ascontiguousarray(scaled.permute(1, 2, 0).numpy())


def place_image(
    figure: Figure, pixels: npt.NDArray[np.float32] | None, box: tuple[float, float, float], caption: str
) -> None:
    """Place a square picture with a caption under it; without pixels the caption stands in an empty frame.

    Args:
        figure: the figure to draw in.
        pixels: (H, W, 3) in [0, 1], or None.
        box: left, bottom and side of the picture, in inches.
        caption: up to two lines, beneath the picture.
    """
    width, height = figure.get_size_inches()
    left, bottom, side = box
    axes = figure.add_axes((left / width, bottom / height, side / width, side / height))
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color("#BBBBBB")
    if pixels is None:
        axes.set_facecolor("#F4F4F4")
        axes.text(0.5, 0.5, caption, transform=axes.transAxes, ha="center", va="center", fontsize=8, color=MUTED)
        return
    axes.imshow(pixels, interpolation="nearest", aspect="auto" if pixels.shape[0] == pixels.shape[1] else "equal")
    axes.set_xlabel(caption, fontsize=8, color=INK, labelpad=2)
