"""A small recipe on random images, float32, that trains in about a second."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from gradient_disclosure.data.bundle import DataBundle, DataSpec, Examples
from gradient_disclosure.defenses.undefended import Undefended
from gradient_disclosure.training.recipe import TrainingRecipe


def bundle(pool: int = 40, test: int = 20) -> DataBundle:
    generator = torch.Generator().manual_seed(0)

    def draw(n: int) -> Examples:
        labels = torch.randint(0, 3, (n,), generator=generator)
        inputs = torch.rand(n, 1, 4, 4, generator=generator) * 0.5 + labels[:, None, None, None] / 6
        return Examples(inputs, labels)

    spec = DataSpec("image", (1, 4, 4), 3)
    return DataBundle("random", spec, draw(pool), draw(test), (0.0, 1.0), ("zero", "one", "two"))


def network(spec: DataSpec) -> nn.Module:
    """Has dropout, so that the random state matters."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, spec.num_classes)
    )


def recipe(**changes: Any) -> TrainingRecipe:
    defaults: dict[str, Any] = {
        "data": bundle(),
        "network": network,
        "optimizer": partial(torch.optim.Adam, lr=0.01),
        "defense": Undefended(),
        "epochs": 3,
        "batch_size": 8,
        "checkpoint_every_n_steps": 2,
    }
    return TrainingRecipe(**(defaults | changes))
