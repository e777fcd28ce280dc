"""The models of the scaling benchmark: two kinds, swept over batch size, length and width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from experiments.benchmarks.arithmetic import attention_operations, matrices, predicted_ratios
from experiments.benchmarks.models import ADAMW, BenchmarkModel, gpt2_module, next_tokens, tokens

CLASSES = 10


@dataclass(frozen=True)
class Sizes:
    """Sizes of one point.

    Attributes:
        B: examples.
        T: positions.
        width: of the blocks' inputs.
    """

    B: int = 16
    T: int = 128
    width: int = 256


@dataclass(frozen=True)
class Kind:
    """A family of models.

    Attributes:
        name: as given to ``--kinds``.
        description: for the plot.
        model: the model of given sizes.
        prediction: ratio of step times by way, from the arithmetic.
    """

    name: str
    description: str
    model: Callable[[Sizes], BenchmarkModel]
    prediction: Callable[[Sizes], Mapping[str, float]]


DEPTH = 2
VOCABULARY = 1024
HEAD_WIDTH = 64


def _stack(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(DEPTH):
        layers += [nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, CLASSES))


def _stack_model(sizes: Sizes) -> BenchmarkModel:
    def batch() -> tuple[Tensor, Tensor]:
        return torch.randn(sizes.B, sizes.T, sizes.width), torch.randint(CLASSES, (sizes.B, sizes.T))

    return BenchmarkModel(f"stack {sizes}", f"linear stack, {sizes}", ADAMW, lambda: _stack(sizes.width), batch)


def _gpt(sizes: Sizes) -> nn.Module:
    return gpt2_module(
        n_embd=sizes.width,
        n_layer=DEPTH,
        n_head=max(1, sizes.width // HEAD_WIDTH),
        vocab_size=VOCABULARY,
        n_positions=sizes.T,
        bos_token_id=0,
        eos_token_id=0,
    )


def _gpt_model(sizes: Sizes) -> BenchmarkModel:
    batch = tokens(sizes.B, sizes.T, VOCABULARY)
    return BenchmarkModel(f"gpt {sizes}", f"small GPT-2, {sizes}", ADAMW, lambda: _gpt(sizes), batch, next_tokens)


def _predicted_stack(sizes: Sizes) -> Mapping[str, float]:
    with torch.device("meta"):
        return predicted_ratios(matrices(_stack(sizes.width)), sizes.B, sizes.T)


def _predicted_gpt(sizes: Sizes) -> Mapping[str, float]:
    with torch.device("meta"):
        layers = matrices(_gpt(sizes))
    return predicted_ratios(layers, sizes.B, sizes.T, attention_operations(sizes.B, sizes.T, sizes.width, DEPTH))


KINDS: Mapping[str, Kind] = {
    "stack": Kind(
        "stack", f"{DEPTH} × (Linear w→4w, GELU, Linear 4w→w, GELU), 10 classes", _stack_model, _predicted_stack
    ),
    "gpt": Kind("gpt", f"GPT-2 with {DEPTH} blocks, vocabulary {VOCABULARY}, tied head", _gpt_model, _predicted_gpt),
}
AXES: Mapping[str, Sequence[int]] = {
    "B": (8, 16, 32, 64, 128, 256),
    "T": (32, 64, 128, 256, 512, 1024),
    "width": (64, 128, 256, 512, 1024),
}


def points(axis: str, values: Sequence[int], base: Sizes) -> Iterator[tuple[int, Sizes]]:
    """The base with one size changed, value by value."""
    for value in values:
        yield value, replace(base, **{axis: value})
