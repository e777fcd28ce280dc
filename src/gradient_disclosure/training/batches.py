"""Which members form which batch: a pure function of (seed, epoch), so that a run can be resumed bit by bit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from gradient_disclosure.errors import ExampleIdError, UnsupportedTrainingError


def derived_seed(purpose: str, *numbers: int) -> int:
    """Seed of one named random stream, so that streams made from the same user seed do not coincide.

    Args:
        purpose: what the stream is for, e.g. "dp-sgd noise".
        *numbers: the user's seed, the epoch and so on.

    Returns:
        An integer in [0, 2**63).

    Example:
        >>> derived_seed("noise", 0) == derived_seed("noise", 0)
        True
        >>> derived_seed("noise", 0) == derived_seed("batches", 0)
        False
    """
    text = ":".join([purpose, *(str(int(number)) for number in numbers)])
    # torch's CPU generator keeps the low 32 bits of a seed only, so every bit has to depend on every number.
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class BatchPlan(Protocol):
    """What a loader, a defense and an audit may ask of a way to form batches."""

    @property
    def members(self) -> Tensor:
        """(n,) int64: the pool indices that training may use."""

    @property
    def batch_size(self) -> int:
        """The batch size asked for."""

    @property
    def seed(self) -> int:
        """Seed of the draws."""

    @property
    def is_poisson(self) -> bool:
        """Whether each member enters each batch independently of all others."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""

    @property
    def sampling_rate(self) -> float:
        """Probability that a given member is in a given batch."""

    def batches(self, epoch: int) -> list[Tensor]:
        """Pool indices (B,) int64 of each batch of an epoch."""


@dataclass(frozen=True, eq=False)
class _SeededBatches:
    """What both ways to form batches share: the checks, the rate and a random stream per epoch."""

    members: Tensor
    batch_size: int
    seed: int

    is_poisson: ClassVar[bool]

    def __post_init__(self) -> None:
        if self.members.ndim != 1 or self.members.dtype != torch.int64:
            raise ExampleIdError(
                f"members must be a 1-d int64 tensor of pool indices, not {self.members.dtype} of shape "
                f"{tuple(self.members.shape)}; turn a mask into indices with mask.nonzero().squeeze(1)."
            )
        if self.members.numel() == 0:
            raise UnsupportedTrainingError("There are no members to train on: members is empty.")
        if torch.unique(self.members).numel() != self.members.numel():
            raise ExampleIdError("members holds an index more than once; each pool example can be a member only once.")
        if self.batch_size < 1:
            raise UnsupportedTrainingError(f"batch_size must be at least 1, not {self.batch_size}.")

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch: ceil(n / batch_size)."""
        return -(-self.members.numel() // self.batch_size)

    @property
    def sampling_rate(self) -> float:
        """Probability that a given member is in a given batch: 1 / steps_per_epoch."""
        return 1.0 / self.steps_per_epoch

    def _generator(self, epoch: int) -> torch.Generator:
        return torch.Generator().manual_seed(derived_seed(type(self).__name__, self.seed, epoch))


class ShuffledBatches(_SeededBatches):
    """Each member once an epoch, in an order that differs from epoch to epoch; the last batch may be smaller.

    Attributes:
        members: (n,) int64, the pool indices that training may use, each once.
        batch_size: size of every batch but the last.
        seed: seed of the order; the global random state is not touched.

    Example:
        >>> plan = ShuffledBatches(torch.tensor([2, 3, 5, 7, 11]), batch_size=2, seed=0)
        >>> [len(batch) for batch in plan.batches(epoch=0)]
        [2, 2, 1]
        >>> torch.cat(plan.batches(epoch=1)).sort().values.tolist()
        [2, 3, 5, 7, 11]
    """

    is_poisson: ClassVar[bool] = False

    def batches(self, epoch: int) -> list[Tensor]:
        """Pool indices (B,) int64 of each batch of an epoch."""
        order = torch.randperm(self.members.numel(), generator=self._generator(epoch))
        return list(torch.split(self.members[order], self.batch_size))


class PoissonBatches(_SeededBatches):
    """Each member enters each batch independently with probability 1 / steps_per_epoch; a batch may be empty.

    This is the sampling that the accountants of DP-SGD assume (Abadi et al. 2016, "Deep Learning with Differential
    Privacy"). The rate is exactly 1 / steps_per_epoch, not batch_size / n, because Opacus accounts for
    1 / len(loader).

    Attributes:
        members: (n,) int64, the pool indices that training may use, each once.
        batch_size: upper limit of the mean batch size, which is n / ceil(n / batch_size).
        seed: seed of the draws; the global random state is not touched.

    Example:
        >>> plan = PoissonBatches(torch.arange(100), batch_size=30, seed=0)
        >>> plan.steps_per_epoch, plan.sampling_rate
        (4, 0.25)
        >>> len(plan.batches(epoch=0))
        4
    """

    is_poisson: ClassVar[bool] = True

    def batches(self, epoch: int) -> list[Tensor]:
        """Pool indices (B,) int64, in ascending position, of each batch of an epoch; B may be 0."""
        generator = self._generator(epoch)
        n, rate = self.members.numel(), self.sampling_rate
        # float64, because a float32 uniform number has 24 bits: at rate 1e-4 it would be off by up to 6e-4 of itself.
        return [
            self.members[torch.rand(n, generator=generator, dtype=torch.float64) < rate]
            for _ in range(self.steps_per_epoch)
        ]
