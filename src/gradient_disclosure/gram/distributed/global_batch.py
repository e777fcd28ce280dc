"""The batch that several processes form together, each with its own examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.gram.distributed.exchange import Exchange, GramOf
from gradient_disclosure.gram.distributed.forms import PartForm
from gradient_disclosure.gram.distributed.plan import planned
from gradient_disclosure.gram.summed import Term


@dataclass(frozen=True)
class OwnShare:
    """What one rank knows of the batch.

    Attributes:
        terms: per-example gradients of each parameter, of this rank's examples; None where one took no part.
        names: of the parameters.
        sizes: number of examples of each micro-batch.
        factors: what autograd's gradients of the examples of each micro-batch are multiplied with to be their own.
        device: of the gradients.
        gram_of: computes the Gram of a term.
    """

    terms: list[Term | None]
    names: Sequence[str]
    sizes: Sequence[int]
    factors: Sequence[float]
    device: torch.device
    gram_of: GramOf


@dataclass(frozen=True)
class Header:
    """What a rank tells all others before anything else.

    Attributes:
        problem: why it cannot go on, None if it can.
        names: of its parameters.
        forms: form of each parameter's term, empty where it took no part.
        sizes: see :class:`OwnShare`.
        factors: see :class:`OwnShare`.
    """

    problem: str | None = None
    names: tuple[str, ...] = ()
    forms: tuple[tuple[PartForm, ...], ...] = ()
    sizes: tuple[int, ...] = ()
    factors: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of examples."""
        return sum(self.sizes)


@dataclass(frozen=True)
class GlobalBatch:
    """The examples of all processes of a group form one batch: rank 0's, then rank 1's, and so on.

    ``GradientGram(..., ranks=GlobalBatch())`` gives every process the Gram of this batch, products of examples of
    different processes included: what one process would compute on the whole batch. Each rank's loss is taken to
    reduce over its own examples, so that ranks may have batches of different sizes. The work is divided: each rank
    multiplies some rows of the parameters for all examples.

    All processes must call ``gram()`` (or leave the context) at the same step. The examples' inputs and output
    gradients of all layers, or their gradients where these are smaller, are kept until then.

    Attributes:
        group: process group, None for the default one.
        round_mb: about how much a rank sends, and receives, at a time.

    Raises:
        DisclosureError: on use, without an initialized process group.
    """

    group: Any = None
    round_mb: float = 64.0

    def check(self) -> None:
        """Raise unless the processes can talk to each other."""
        if not (dist.is_available() and dist.is_initialized()):
            raise DisclosureError(
                "ranks=GlobalBatch() needs a process group: call torch.distributed.init_process_group first, or leave "
                "ranks out where there is one process."
            )

    @property
    def n_ranks(self) -> int:
        """Number of processes."""
        return dist.get_world_size(self.group)

    def gram(self, share: OwnShare) -> tuple[Tensor, Tensor]:
        """Gram of all examples, from each rank's share; every rank calls it.

        Args:
            share: this rank's; its terms are let go as they are sent.

        Returns:
            (B, B) float64 inner products of the gradients as autograd has them, and (B,) float64, the factors that make
            each the gradient of the example's own loss; the same on every rank.

        Raises:
            DisclosureError: another rank cannot go on, or has another module.
        """
        forms = tuple(() if t is None else tuple(PartForm.of(p) for p in t.parts) for t in share.terms)
        own = Header(None, tuple(share.names), forms, tuple(share.sizes), tuple(share.factors))
        headers = self._agreed(own)
        rank = dist.get_rank(self.group)
        parameters = [
            [[form.without_numbers() for form in header.forms[at]] for header in headers]
            for at in range(len(share.terms))
        ]
        exchange = Exchange(self.group, rank, [header.size for header in headers], parameters, share.device)
        size = sum(exchange.sizes)
        total = torch.zeros(size, size, dtype=torch.float64, device=share.device)
        for pieces in planned(parameters, len(headers), int(self.round_mb * 1e6)):
            total += exchange.gram(pieces, share.terms, share.gram_of)
        dist.all_reduce(total, group=self.group)
        factors = [torch.full((n,), f) for h in headers for n, f in zip(h.sizes, h.factors, strict=True)]
        scale = torch.cat([factor.double() for factor in factors]) if factors else torch.zeros(0, dtype=torch.float64)
        return total, scale.to(share.device)

    def report(self, problem: BaseException) -> None:
        """Tell the other ranks, which wait in :meth:`gram`, that this one cannot go on."""
        self._exchanged(Header(problem=str(problem)))

    def _agreed(self, own: Header) -> list[Header]:
        headers = self._exchanged(own)
        stopped = {rank: header.problem for rank, header in enumerate(headers) if header.problem is not None}
        if stopped:
            raise DisclosureError("; ".join(f"rank {rank} stopped: {problem}" for rank, problem in stopped.items()))
        if any(header.names != own.names for header in headers):
            counts = [len(header.names) for header in headers]
            raise DisclosureError(
                f"the ranks observe different modules, or leave out different parameters ({counts} parameters): one "
                "Gram needs the same on all."
            )
        return headers

    def _exchanged(self, own: Header) -> list[Header]:
        headers: list[Any] = [None] * self.n_ranks
        dist.all_gather_object(headers, own, group=self.group)
        return headers
