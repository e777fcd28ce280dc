"""Which layers of torch's own sequence modules get time as their first axis, and the batch as their second."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def time_first_layers(module: nn.Module) -> set[str]:
    """Names of the submodules whose first input has axes (time, batch, ...).

    Only what torch's own classes make certain: recurrent layers, ``nn.MultiheadAttention``, transformer layers and
    stacks with ``batch_first=False``, and what these call on such inputs (linear layers, dropouts, activations, norms).
    The layout of a layer outside of them is its caller's choice and cannot be read off the module.

    Args:
        module: any module.

    Returns:
        Names as ``named_modules`` gives them; ``""`` is the module itself.

    Example:
        >>> layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8)
        >>> linear = {name for name in time_first_layers(layer) if isinstance(layer.get_submodule(name), nn.Linear)}
        >>> sorted(linear)
        ['linear1', 'linear2']
        >>> time_first_layers(nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, batch_first=True))
        set()
    """
    found = {id(layer) for child in module.modules() for layer in _time_first_of(child)}
    if not found:
        return set()
    return {name for name, child in module.named_modules() if id(child) in found}


def _time_first_of(module: nn.Module) -> Iterator[nn.Module]:
    """What one module's own class tells: itself, and those parts that it calls time-first."""
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase):
        if not module.batch_first:
            yield module
    elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        if _is_time_first(module):
            yield module
            yield from _called(module)
    elif isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder):
        if any(_is_time_first(layer) for layer in module.layers):
            yield module
            if module.norm is not None:
                yield from module.norm.modules()
    elif isinstance(module, nn.Transformer) and not module.batch_first:
        yield from (module, module.encoder, module.decoder)


def _is_time_first(layer: nn.Module) -> bool:
    """Whether a transformer layer's attention, and so the layer, works on (time, batch, features)."""
    return not getattr(getattr(layer, "self_attn", None), "batch_first", True)


def _called(layer: nn.Module) -> Iterator[nn.Module]:
    """All that a transformer layer is made of, without the attention modules, which speak for themselves."""
    for child in layer.children():
        if not isinstance(child, nn.MultiheadAttention):
            yield from child.modules()
