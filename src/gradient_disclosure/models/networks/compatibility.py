"""Which network fits which data."""

from __future__ import annotations

from collections.abc import Mapping

from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.errors import IncompatibleModelError

# Below these sides the last feature map would be a single pixel made of padding for the most part.
SMALLEST_SIDE: Mapping[str, int] = {"small_cnn": 4, "lenet": 8, "resnet18": 8}


def require_images(spec: DataSpec, model: str) -> tuple[int, int, int]:
    """Channels, height and width of the data, if `model` can be trained on it.

    Args:
        spec: what the data look like.
        model: name of a network for images, a key of `SMALLEST_SIDE`.

    Raises:
        IncompatibleModelError: the data are no images, or too small ones; the message says which models fit.

    Example:
        >>> require_images(DataSpec(kind="image", shape=(1, 8, 8), num_classes=10), "lenet")
        (1, 8, 8)
    """
    if spec.kind != "image":
        raise IncompatibleModelError(
            f"model {model} needs images (C, H, W), the data are {spec.kind} with inputs of shape {spec.shape}. "
            "Models that fit: mlp."
        )
    channels, height, width = spec.shape
    side = min(height, width)
    if side < SMALLEST_SIDE[model]:
        fitting = ["mlp", *(name for name, smallest in SMALLEST_SIDE.items() if side >= smallest)]
        raise IncompatibleModelError(
            f"model {model} needs images of at least {SMALLEST_SIDE[model]}x{SMALLEST_SIDE[model]} pixels, "
            f"the data have {height}x{width}. Models that fit: {', '.join(fitting)}."
        )
    return channels, height, width


def halved(side: int, times: int) -> int:
    """Side of a feature map after `times` convolutions of stride 2 whose padding is half their (odd) kernel.

    Example:
        >>> halved(28, 2), halved(7, 1)
        (7, 4)
    """
    for _ in range(times):
        side = (side + 1) // 2
    return side
