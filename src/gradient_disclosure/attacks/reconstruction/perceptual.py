"""LPIPS from weights at hand: never downloaded, never random."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction.perceptual_weights import find_weights

_logger = logging.getLogger(__name__)

_SMALLEST = 32
_ENLARGED = 64


class PerceptualDistance:
    """Learned perceptual image patch similarity, LPIPS (Zhang et al. 2018), on AlexNet features.

    ``PerceptualDistance.load`` makes one; 0 is an exact match.

    Args:
        network: an ``lpips.LPIPS`` module with its weights loaded.

    Example:
        >>> PerceptualDistance.key(8, 8), PerceptualDistance.key(32, 32)
        ('lpips_at_64px', 'lpips')
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network.eval().requires_grad_(False)

    @classmethod
    def load(cls, weights: Path | None = None) -> PerceptualDistance | None:
        """Builds the network from a file, or from an AlexNet that torch hub has downloaded before.

        Args:
            weights: safetensors file with torchvision's AlexNet keys ``features.*``, and optionally LPIPS's own
                ``lin0.weight`` … ``lin4.weight`` (otherwise those in the ``lpips`` package are used); None looks in
                torch hub's cache only.

        Returns:
            The distance, or None with a logged warning where no weights are to be had.

        Raises:
            AttackInputError: the weights that were found are not those of the network.

        Example:
            >>> missing = PerceptualDistance.load(Path("/nowhere.safetensors"))  # None unless torch hub has an AlexNet
        """
        found = find_weights(weights)
        if found is None:
            _logger.warning(
                "LPIPS is left out: its AlexNet backbone is not %sin %s. Give the path of its weights, or let "
                "torchvision download alexnet once.",
                "" if weights is None else f"at {weights} nor ",
                torch.hub.get_dir(),
            )
            return None
        return cls(_build(found))

    @staticmethod
    def key(height: int, width: int) -> str:
        """Metric key for images of this size: images below 32 pixels are enlarged, and the key says so."""
        return "lpips" if min(height, width) >= _SMALLEST else f"lpips_at_{_ENLARGED}px"

    def __call__(self, first: Tensor, second: Tensor) -> Tensor:
        """Distance of each pair of images.

        Args:
            first: (B, 1 or 3, H, W) in [-1, 1]; below 32 pixels it is enlarged to 64 × 64 bilinearly.
            second: the same.

        Returns:
            (B,) float32, at least 0.

        Raises:
            AttackInputError: neither 1 nor 3 channels.
        """
        with torch.no_grad():
            distance: Tensor = self._network(_prepared(first), _prepared(second))
        return distance.flatten()


def _prepared(images: Tensor) -> Tensor:
    """Three channels, float32, large enough for AlexNet."""
    if images.shape[1] not in (1, 3):
        raise AttackInputError(f"LPIPS needs images of 1 or 3 channels, but theirs are {images.shape[1]}.")
    images = images.float().expand(-1, 3, -1, -1)
    if min(images.shape[2:]) < _SMALLEST:
        images = F.interpolate(images, size=(_ENLARGED, _ENLARGED), mode="bilinear", align_corners=False)
    return images


def _build(weights: dict[str, Tensor]) -> nn.Module:
    """An lpips.LPIPS with these weights (its own names), every one of them loaded."""
    import lpips

    # On the meta device nothing is drawn: neither time nor the global random state is spent on weights to be replaced.
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lpips calls torchvision by argument names that torchvision has deprecated
        network: nn.Module = lpips.LPIPS(pretrained=False, pnet_rand=True, net="alex", verbose=False)
    scaling = lpips.ScalingLayer()
    weights = weights | {"scaling_layer.shift": scaling.shift, "scaling_layer.scale": scaling.scale}
    try:
        network.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError as error:
        raise AttackInputError(f"the LPIPS weights do not fit its AlexNet: {error}") from error
    return network
