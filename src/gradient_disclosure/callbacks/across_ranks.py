"""How an audit scores a step whose examples lie in several processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor

from gradient_disclosure.errors import DisclosureError, ExampleIdError, UnsupportedTrainingError
from gradient_disclosure.gram.distributed.global_batch import GlobalBatch
from gradient_disclosure.scores.gnq import GnqResult

T = TypeVar("T")


@dataclass(frozen=True)
class Scored:
    """Examples that were scored together.

    Attributes:
        result: their scores.
        ids: (B,) data set indices; None where examples have none.
    """

    result: GnqResult
    ids: Tensor | None


class AcrossRanks(Protocol):
    """How a step's examples are scored; what returns is the same on every rank."""

    @property
    def n_ranks(self) -> int:
        """Number of processes that train together."""

    @property
    def ranks_apart(self) -> int:
        """Number of groups of examples of a step that are scored apart."""

    @property
    def gram_ranks(self) -> GlobalBatch | None:
        """Processes whose examples are in one Gram, for :class:`GradientGram`."""

    def ids(self, own: Callable[[], Tensor]) -> Tensor:
        """Data set indices of the examples of the Gram, from a function that gives those of this process."""

    def scored(self, own: Callable[[], Scored | None]) -> list[Scored]:
        """All that was scored in a step, from a function that scores the Gram of this process, if it has any."""

    def any(self, flag: bool) -> bool:
        """Whether something holds in any process."""


@dataclass(frozen=True)
class OneProcess:
    """There is one process.

    Example:
        >>> OneProcess().scored(lambda: None), OneProcess().gram_ranks
        ([], None)
    """

    n_ranks = ranks_apart = 1
    gram_ranks = None

    def ids(self, own: Callable[[], Tensor]) -> Tensor:
        """Those of the process."""
        return own()

    def scored(self, own: Callable[[], Scored | None]) -> list[Scored]:
        """What the process scored."""
        one = own()
        return [] if one is None else [one]

    def any(self, flag: bool) -> bool:
        """The flag."""
        return flag


@dataclass(frozen=True)
class Globally:
    """The examples of all ranks are scored together, on every rank alike.

    Attributes:
        group: process group of the ranks that have different examples; None for the default one.
    """

    group: Any
    ranks_apart = 1

    @property
    def n_ranks(self) -> int:
        """Size of the group."""
        return dist.get_world_size(self.group)

    @property
    def gram_ranks(self) -> GlobalBatch | None:
        """All of them."""
        return GlobalBatch(self.group)

    def ids(self, own: Callable[[], Tensor]) -> Tensor:
        """Those of rank 0, then those of rank 1, and so on."""
        found = exchanged(own, self.group)
        for rank, ids in enumerate(found):
            if len(ids.unique()) < len(ids):
                raise ExampleIdError(f"ids occur more than once in the batch of rank {rank}: {ids.tolist()}")
        refuse_equal_batches(found)
        return torch.cat(found)

    def scored(self, own: Callable[[], Scored | None]) -> list[Scored]:
        """What every rank has computed from the same Gram."""
        return OneProcess().scored(own)

    def any(self, flag: bool) -> bool:
        """Whether it is set on any rank."""
        return any(exchanged(lambda: flag, self.group))


@dataclass(frozen=True)
class PerRank(Globally):
    """Each rank's examples are scored among themselves; every rank then learns of all scores.

    Attributes:
        group: see :class:`Globally`.
    """

    @property
    def ranks_apart(self) -> int:  # type: ignore[override]
        """Every rank for itself."""
        return self.n_ranks

    @property
    def gram_ranks(self) -> GlobalBatch | None:
        """No other process."""
        return None

    def ids(self, own: Callable[[], Tensor]) -> Tensor:
        """Those of this process."""
        return own()

    def scored(self, own: Callable[[], Scored | None]) -> list[Scored]:
        """What each rank scored, in their order."""
        found = [one for one in exchanged(own, self.group) if one is not None]
        refuse_equal_batches([one.ids for one in found if one.ids is not None])
        return found


ACROSS_RANKS: dict[str, Callable[[Any], AcrossRanks]] = {"global": Globally, "per_rank": PerRank}
"""Name → how examples of several processes are scored."""


def across_ranks_of(trainer: Trainer, name: str) -> AcrossRanks:
    """The way of that name, for the processes of a training.

    Raises:
        UnsupportedTrainingError: it cannot be told which process has which examples.
    """
    if trainer.world_size == 1:
        return OneProcess()
    if isinstance(trainer.strategy, DDPStrategy):
        return ACROSS_RANKS[name](None)
    if isinstance(trainer.strategy, ModelParallelStrategy):
        mesh = trainer.strategy.device_mesh
        if mesh["tensor_parallel"].size() == 1:
            return ACROSS_RANKS[name](mesh["data_parallel"].get_group())
        raise UnsupportedTrainingError(
            f"{mesh['tensor_parallel'].size()} processes hold parts of one layer (tensor parallelism), which the audit "
            "does not follow. Use ModelParallelStrategy(data_parallel_size=<processes>, tensor_parallel_size=1)."
        )
    raise UnsupportedTrainingError(
        f"{trainer.world_size} processes train together under {type(trainer.strategy).__name__}, which the audit does "
        "not follow. Use strategy='ddp', ModelParallelStrategy with fully_shard, or one device."
    )


def exchanged(own: Callable[[], T], group: Any) -> list[T]:
    """What a function returned on each rank; if it fails on one, all of them stop.

    Args:
        own: called on this rank.
        group: process group, None for the default one.

    Raises:
        DisclosureError: it failed on another rank.
    """
    error: Exception | None = None
    value: T | None = None
    try:
        value = own()
    except Exception as caught:
        error = caught
    answers: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(answers, (None if error is None else str(error), value), group=group)
    if error is not None:
        raise error
    stopped = [f"rank {rank} stopped: {problem}" for rank, (problem, _) in enumerate(answers) if problem is not None]
    if stopped:
        raise DisclosureError("; ".join(stopped))
    return [value for _, value in answers]


def refuse_equal_batches(ids: list[Tensor]) -> None:
    """Raise if all ranks have the very same examples, as without a distributed sampler.

    Args:
        ids: data set indices on each rank.

    Raises:
        UnsupportedTrainingError: they have, more than one each.

    Example:
        >>> refuse_equal_batches([torch.tensor([1, 2]), torch.tensor([1, 3])])
    """
    if len(ids) > 1 and len(ids[0]) > 1 and all(torch.equal(ids[0], other) for other in ids[1:]):
        raise UnsupportedTrainingError(
            f"all {len(ids)} ranks train on the same examples {ids[0].tolist()[:5]}…: every one would count "
            f"{len(ids)} times. Give the loader a torch.utils.data.DistributedSampler (Lightning does so for a "
            "DataLoader, unless use_distributed_sampler=False)."
        )
