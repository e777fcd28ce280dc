"""Batches straight from tensors, with a position that Lightning can save and restore within an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from gradient_disclosure.data.bundle import Examples
from gradient_disclosure.errors import ExampleIdError, UnsupportedTrainingError
from gradient_disclosure.training.batches import BatchPlan


class BatchLoader:
    """Iterable of training batches ``(inputs, labels, index)`` for Lightning's Trainer.

    Lightning's own resume restarts a loader at the epoch's first batch while its counters go on. This loader has
    ``state_dict``/``load_state_dict``, and its batches depend on nothing but the plan and the epoch, so a run that was
    killed within an epoch goes on with the batch that follows.

    Args:
        examples: the pool that the plan's indices point into.
        plan: which members form which batch.

    Raises:
        ExampleIdError: the plan has an index outside the pool.

    Example:
        >>> from gradient_disclosure.training.batches import ShuffledBatches
        >>> pool = Examples(inputs=torch.arange(6.0).reshape(6, 1), labels=torch.zeros(6, dtype=torch.int64))
        >>> loader = BatchLoader(pool, ShuffledBatches(torch.arange(6), batch_size=4, seed=0))
        >>> [(tuple(inputs.shape), bool((inputs[:, 0] == index).all())) for inputs, labels, index in loader]
        [((4, 1), True), ((2, 1), True)]
    """

    def __init__(self, examples: Examples, plan: BatchPlan) -> None:
        if int(plan.members.min()) < 0 or int(plan.members.max()) >= len(examples):
            raise ExampleIdError(
                f"The plan's members span {int(plan.members.min())} to {int(plan.members.max())}, but the pool has "
                f"{len(examples)} examples (0 to {len(examples) - 1})."
            )
        self.examples = examples
        self.plan = plan
        self._epoch = 0
        self._position = 0  # batches handed out in this epoch
        self._start = 0  # where the next pass through this epoch begins; other than 0 only after a resume

    def __len__(self) -> int:
        """Number of batches in an epoch."""
        return self.plan.steps_per_epoch

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        # A generator, so that nothing below runs before the first batch is fetched: Lightning calls iter() first and
        # tells the epoch afterwards.
        batches = self.plan.batches(self._epoch)
        start, self._start = self._start, 0
        for position in range(start, len(batches)):
            index = batches[position]
            self._position = position + 1
            yield self.examples.inputs[index], self.examples.labels[index], index

    @property
    def dataset(self) -> Dataset[tuple[Tensor, ...]]:
        """The n members as a map-style data set of (input, label, index)."""
        pool = TensorDataset(self.examples.inputs, self.examples.labels, torch.arange(len(self.examples)))
        return Subset(pool, self.plan.members.tolist())

    @property
    def sampler(self) -> BatchLoader:
        """This loader itself: ``loader.sampler.set_epoch`` is where Lightning announces an epoch."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. A restored position is for its own epoch and dropped for any other."""
        if epoch != self._epoch:
            self._epoch, self._position, self._start = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Epoch, number of batches handed out in it, and what the plan was made from (plain numbers)."""
        return {"epoch": self._epoch, "position": self._position, "plan": _identity(self.plan)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on after the batches that were handed out.

        Raises:
            UnsupportedTrainingError: the state was saved with other members, batch size, seed or kind of sampling.
        """
        here = _identity(self.plan)
        changed = [f"{key} {state['plan'][key]} -> {here[key]}" for key in here if state["plan"][key] != here[key]]
        if changed:
            raise UnsupportedTrainingError(
                f"The checkpoint was saved in the middle of an epoch of other batches ({'; '.join(changed)}). Resume "
                "with the settings of the original run, or start a new run."
            )
        self._epoch, self._position, self._start = state["epoch"], state["position"], state["position"]


def _identity(plan: BatchPlan) -> dict[str, int]:
    # A weighted sum tells one choice of members from another without storing them; int64 overflow only wraps.
    weights = torch.arange(1, plan.members.numel() + 1)
    return {
        "is_poisson": int(plan.is_poisson),
        "batch_size": plan.batch_size,
        "seed": plan.seed,
        "members": plan.members.numel(),
        "members_checksum": int((plan.members * weights).sum()),
    }
