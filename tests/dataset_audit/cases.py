"""Small models and data sets for audits of a whole data set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.dataset_audit import classification_losses
from gradient_disclosure.gram.reference import leave_one_out_gnq, per_example_gradients

Batch = tuple[Tensor, Tensor, Tensor]


class Tied(nn.Module):
    """A sequence model whose head is its embedding: positions, lookups and cross terms between the two."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.hidden = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.hidden(self.embedding(ids)))
        return nn.functional.linear(h, self.embedding.weight).mean(dim=1)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.GroupNorm(1, 3), nn.Conv2d(3, 2, 2), nn.Flatten(), nn.Linear(18, 3)
    )


def sequence() -> nn.Module:
    return nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 6), nn.Flatten(), nn.Linear(12, 3))


def inputs_of(name: str, n: int, dtype: torch.dtype) -> Tensor:
    shapes = {"mlp": (6,), "cnn": (1, 6, 6), "sequence": (2, 9)}
    if name == "tied":
        return torch.randint(0, 7, (n, 5))
    return torch.randn(n, *shapes[name], dtype=dtype)


MODELS = {"mlp": mlp, "cnn": cnn, "sequence": sequence, "tied": Tied}


def case(name: str, n: int, dtype: torch.dtype = torch.float64, batch_size: int = 17) -> tuple[nn.Module, list[Batch]]:
    """A model, and n examples in batches, with ids that are not 0, 1, 2, ..."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = MODELS[name]().to(dtype)
        x, y = inputs_of(name, n, dtype), torch.randint(0, 3, (n,))
    ids = torch.arange(n) * 2 + 5
    return module, [(x[rows], y[rows], ids[rows]) for rows in torch.arange(n).split(batch_size)]


def literal_gradients(module: nn.Module, batches: list[Any]) -> Tensor:
    """(N, d) by autograd, one example at a time, in evaluation mode."""
    x, y, ids = (torch.cat(parts) for parts in zip(*batches, strict=True))
    modes = module.training
    module.eval()
    gradients = per_example_gradients(
        module, lambda m, i: classification_losses(m, (x[i : i + 1], y[i : i + 1], ids[i : i + 1])).sum(), len(ids)
    )
    module.train(modes)
    return gradients


def literal_scores(module: nn.Module, batches: list[Any], damping: float) -> Tensor:
    """The definition: an explicit sum over the others, inverted in the space of parameters."""
    return leave_one_out_gnq(literal_gradients(module, batches), damping)
