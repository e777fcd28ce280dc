"""The trainings on which full and cheaper audits are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gradient_disclosure.data import load_digits, load_mnist
from gradient_disclosure.data.bundle import DataBundle, DataSpec
from gradient_disclosure.defenses.undefended import Undefended
from gradient_disclosure.models import mlp, small_cnn
from gradient_disclosure.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class Task:
    """One training.

    Attributes:
        name: of data and model.
        load: data loader.
        pool: number of examples of which half are members.
        network: data spec → network.
        network_words: the network in words.
        epochs: passes over the members.
        seeds: of members, weights, batches and schedule.
        timing_blocks: how often each audit is timed.
    """

    name: str
    load: Callable[..., DataBundle]
    pool: int
    network: Callable[[DataSpec], nn.Module]
    network_words: str
    epochs: int
    seeds: tuple[int, ...]
    timing_blocks: int

    def recipe(self, root: Path) -> TrainingRecipe:
        """Undefended training with the defaults of ``conf/``."""
        return TrainingRecipe(
            data=self.load(root=root, pool_size=self.pool, test_size=200, seed=0),
            network=self.network,
            optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9),
            defense=Undefended(),
            epochs=self.epochs,
            batch_size=64,
            checkpoint_every_n_steps=10_000,
        )

    def description(self) -> dict[str, Any]:
        """Numbers and texts that decide the results."""
        return {
            "data": self.name.split("_", maxsplit=1)[0],
            "network": self.network_words,
            "members": self.pool // 2,
            "epochs": self.epochs,
            "batch_size": 64,
            "optimizer": "SGD, learning rate 0.1, momentum 0.9",
            "damping": 0.01,
            "sampling": "shuffled epochs",
            "seeds": list(self.seeds),
        }


def quick(task: Task) -> Task:
    """The same, as small as it goes: its numbers mean nothing."""
    return replace(task, pool=400, epochs=2, seeds=task.seeds[:2], timing_blocks=2)


TASKS: Mapping[str, Task] = {
    "digits_mlp": Task(
        "digits_mlp", load_digits, 1400, partial(mlp, hidden=(128, 64)), "mlp 64-128-64-10", 30, (0, 1, 2, 3, 4), 30
    ),
    "mnist_small_cnn": Task(
        "mnist_small_cnn", load_mnist, 2000, small_cnn, "small_cnn (2 convolutions, 2 linear)", 15, (0, 1, 2), 12
    ),
}
