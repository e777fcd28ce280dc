"""Finds the weights of LPIPS's AlexNet and gives them the names that lpips.LPIPS uses."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError

_HUB_FILE = "alexnet-owt-7be5be79.pth"
# Convolution n of torchvision's AlexNet.features is the one in this slice of lpips.pretrained_networks.alexnet.
_SLICE_OF = {0: 1, 3: 2, 6: 3, 8: 4, 10: 5}
_LINEAR_LAYERS = 5


def find_weights(path: Path | None) -> dict[str, Tensor] | None:
    """Weights of LPIPS on AlexNet, from a file or from torch hub's cache; nothing is downloaded or unpickled.

    Args:
        path: safetensors file; None, or a file that is not there, leaves torch hub's cache.

    Returns:
        State of an ``lpips.LPIPS(net="alex")`` but for its constant scaling layer; None where there are no weights.

    Raises:
        AttackInputError: a file was found that lacks a weight.

    Example:
        >>> weights = find_weights(None)
        >>> weights is None or "net.slice1.0.weight" in weights
        True
    """
    cached = Path(torch.hub.get_dir()) / "checkpoints" / _HUB_FILE
    if path is not None and path.is_file():
        source, stored = path, load_file(path)
    elif cached.is_file():
        source, stored = cached, torch.load(cached, map_location="cpu", weights_only=True)
    else:
        return None
    try:
        backbone = {
            f"net.slice{part}.{layer}.{kind}": stored[f"features.{layer}.{kind}"]
            for layer, part in _SLICE_OF.items()
            for kind in ("weight", "bias")
        }
    except KeyError as error:
        raise AttackInputError(f"{source} has no {error}: it is not an AlexNet with torchvision's names.") from error
    return backbone | _linear_layers(stored)


def _linear_layers(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """LPIPS's own layers from the same file, or those that the lpips package carries."""
    if not all(f"lin{k}.weight" in stored for k in range(_LINEAR_LAYERS)):
        spec = find_spec("lpips")
        assert spec is not None
        assert spec.origin is not None
        packaged = Path(spec.origin).parent / "weights" / "v0.1" / "alex.pth"
        loaded = torch.load(packaged, map_location="cpu", weights_only=True)
        stored = {f"lin{k}.weight": loaded[f"lin{k}.model.1.weight"] for k in range(_LINEAR_LAYERS)}
    # lpips registers each layer twice: under its own name and in a list.
    names = ((name, k) for k in range(_LINEAR_LAYERS) for name in (f"lin{k}", f"lins.{k}"))
    return {f"{name}.model.1.weight": stored[f"lin{k}.weight"] for name, k in names}
