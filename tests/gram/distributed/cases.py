"""Modules, batches and losses that two processes share; every process builds the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Losses = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(module, inputs, labels) → loss of each example (B,)."""


class TinyTransformer(nn.Module):
    """Token ids → logits at the last position; the head is the embedding."""

    def __init__(self, vocabulary: int = 11, width: int = 8, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(8, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Partial(nn.Module):
    """A second layer is used only where an example's first entry is large in the batch at hand."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).tanh()
        if self.uses_second:
            x = x + self.second(x).tanh()
        return self.head(x)

    uses_second = True


class Bare(nn.Module):
    """Parameters that belong to no layer: a gain and a shift, broadcast over the examples, and a plain matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(5, 4))
        self.gain, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x @ self.matrix * self.gain + self.shift).tanh())


def label_losses(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(module(x), y, reduction="none")


def token_losses(module: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
    """Mean over an example's own positions, of which there may be another number on another rank."""
    return F.cross_entropy(module(ids).transpose(1, 2), ids.roll(1, dims=1), reduction="none").mean(dim=1)


@dataclass(frozen=True)
class Case:
    """A module and what it is trained on: one batch a rank."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], list[Tensor]]
    losses: Losses = label_losses

    def module(self) -> nn.Module:
        torch.manual_seed(1)
        return self.build().double()

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        torch.manual_seed(2)
        return [(x if x.dtype == torch.int64 else x.double(), torch.randint(3, (len(x),))) for x in self.inputs()]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 40), nn.Tanh(), nn.Linear(40, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 5, 3, stride=2),
        nn.Conv2d(5, 4, 1), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def vectors(*sizes: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(size, 5) for size in sizes]


CASES = {
    "mlp": Case(mlp, vectors(4, 4)),
    "unequal batches": Case(mlp, vectors(2, 5)),
    "one example and many": Case(mlp, vectors(1, 6)),
    "cnn": Case(cnn, lambda: [torch.randn(3, 2, 6, 6) for _ in range(2)]),
    "transformer": Case(TinyTransformer, lambda: [torch.randint(11, (3, 6)), torch.randint(11, (3, 6))], token_losses),
    "other lengths": Case(
        TinyTransformer, lambda: [torch.randint(11, (2, 7)), torch.randint(11, (3, 4))], token_losses
    ),
    "bare parameters": Case(Bare, vectors(3, 4)),
}
"""Cases for which both processes run the same code."""
