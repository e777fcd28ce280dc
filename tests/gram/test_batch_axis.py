from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradient_disclosure.gram.batch_axis import time_first_layers

TIME, BATCH, MEMORY = 5, 3, 7
"""All different, so that the axes of an input tell which is which."""


def observed_axes(module: nn.Module, *args: Any, **kwargs: Any) -> dict[str, bool]:
    """Name → whether the first input was time-first, of every submodule that ran; independent of their classes."""
    seen: dict[str, bool] = {}

    def watch(name: str) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            first = args[0] if args else kwargs[next(iter(kwargs))]
            assert BATCH in first.shape[:2]
            seen[name] = first.shape[0] in (TIME, MEMORY) and first.shape[1] == BATCH

        return hook

    for name, child in module.named_modules():
        child.register_forward_pre_hook(watch(name), with_kwargs=True)
    module(*args, **kwargs)
    return seen


def sequence(batch_first: bool, length: int = TIME) -> Tensor:
    return torch.randn((BATCH, length, 4) if batch_first else (length, BATCH, 4))


def encoder_layer(batch_first: bool, **options: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(4, 2, 6, batch_first=batch_first, **options)


def decoder_layer(batch_first: bool, **options: Any) -> nn.TransformerDecoderLayer:
    return nn.TransformerDecoderLayer(4, 2, 6, batch_first=batch_first, **options)


def encoder(batch_first: bool, norm: nn.Module | None) -> nn.TransformerEncoder:
    return nn.TransformerEncoder(encoder_layer(batch_first), 2, norm, enable_nested_tensor=False)


ONE_INPUT = {
    "rnn": lambda first: nn.RNN(4, 4, batch_first=first),
    "lstm": lambda first: nn.LSTM(4, 4, 2, batch_first=first, bidirectional=True),
    "gru": lambda first: nn.GRU(4, 4, batch_first=first),
    "encoder layer": encoder_layer,
    "encoder layer, norm first": lambda first: encoder_layer(first, norm_first=True),
    "encoder layer, activation module": lambda first: encoder_layer(first, activation=nn.PReLU()),
    "encoder": lambda first: encoder(first, None),
    "encoder with norm": lambda first: encoder(first, nn.LayerNorm(4)),
    "encoder with composite norm": lambda first: encoder(first, nn.Sequential(nn.LayerNorm(4), nn.Dropout())),
    "encoder within a model": lambda first: nn.Sequential(encoder(first, nn.LayerNorm(4))),
}
TWO_INPUTS = {
    "decoder layer": decoder_layer,
    "decoder layer, norm first": lambda first: decoder_layer(first, norm_first=True),
    "decoder": lambda first: nn.TransformerDecoder(decoder_layer(first), 2),
    "decoder with norm": lambda first: nn.TransformerDecoder(decoder_layer(first), 2, nn.RMSNorm(4)),
    "attention": lambda first: nn.MultiheadAttention(4, 2, batch_first=first),
    "transformer": lambda first: nn.Transformer(4, 2, 1, 2, 6, batch_first=first),
}
CASES = [(name, build, 1) for name, build in ONE_INPUT.items()] + [
    (name, build, 2) for name, build in TWO_INPUTS.items()
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("name", "build", "count"), CASES, ids=[case[0] for case in CASES])
def test_names_are_those_seen_to_be_time_first(
    name: str, build: Callable[[bool], nn.Module], count: int, batch_first: bool
) -> None:
    module = build(batch_first)
    inputs = [sequence(batch_first), sequence(batch_first, MEMORY)][:count]
    if isinstance(module, nn.MultiheadAttention):
        inputs.append(inputs[1])
    axes = observed_axes(module, *inputs)
    wrapper = {""} if name == "encoder within a model" else set()
    assert time_first_layers(module) == {layer for layer, time_first in axes.items() if time_first} - wrapper
    assert any(axes.values()) != batch_first


def test_only_the_time_first_part_of_a_model_is_named() -> None:
    model = nn.ModuleDict({"first": encoder_layer(True), "second": encoder_layer(False), "head": nn.Linear(4, 2)})
    names = time_first_layers(model)
    assert {"second", "second.self_attn", "second.linear1", "second.norm2"} <= names
    assert all(name.startswith("second") for name in names)


def test_a_layer_reached_by_two_names_is_named_once() -> None:
    layer = encoder_layer(False)
    model = nn.ModuleDict({"layer": layer, "stack": nn.ModuleList([layer])})
    known = {name for name, _ in model.named_modules()}
    assert "layer.linear1" in time_first_layers(model) <= known


def test_out_proj_is_never_called_and_not_named() -> None:
    assert time_first_layers(nn.MultiheadAttention(4, 2)) == {""}
