"""One optimizer step as the audit sees it: one batch, or several whose gradients accumulate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch import Tensor

from gradient_disclosure.errors import ExampleIdError
from gradient_disclosure.gram.engine import GradientGram

ExampleIds = Callable[[Any], Tensor]


class ObservedStep:
    """The open Gram of a step and the batches that went into it.

    Args:
        gram: an entered context.
        batch: the first batch.

    Attributes:
        found_ids: data set indices of the examples of the Gram, once they are known.
    """

    def __init__(self, gram: GradientGram, batch: Any) -> None:
        self.gram = gram
        self.found_ids: Tensor | None = None
        self._batches = [batch]

    def add(self, batch: Any) -> None:
        """Another micro-batch of the same step."""
        self._batches.append(batch)

    def ids(self, example_ids: ExampleIds) -> Tensor:
        """Data set indices of all examples, in the order of the Gram, (B,).

        Raises:
            ExampleIdError: not one integer an example.
        """
        found = [example_ids(batch) for batch in self._batches]
        size = self.gram.batch_size
        if not all(isinstance(ids, Tensor) and ids.dim() == 1 for ids in found) or sum(map(len, found)) != size:
            shapes = [tuple(ids.shape) if isinstance(ids, Tensor) else type(ids).__name__ for ids in found]
            given = shapes[0] if len(shapes) == 1 else shapes
            raise ExampleIdError(
                f"example_ids gave {given} for a batch of {size} examples; one integer an example is needed"
            )
        return torch.cat([ids.cpu() for ids in found])

    def named(self) -> str:
        """The ids found, in the order of the Gram, for a message, so that positions in it can be looked up."""
        return "" if self.found_ids is None else f"; ids of the batch in order: {self.found_ids.tolist()}"


def more_to_come(trainer: Trainer) -> bool:
    """Whether the gradients of further batches will be added before the optimizer steps."""
    waits: bool = trainer.fit_loop.epoch_loop._should_accumulate()
    return waits
