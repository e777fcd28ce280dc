"""What is known of a forward pass while it runs, and where its uses of parameters are reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.batch_layout import BatchLayout
from gradient_disclosure.gram.fallback import refusal
from gradient_disclosure.gram.frame import Frame, in_first_forward
from gradient_disclosure.gram.kinds import TensorKinds
from gradient_disclosure.gram.meetings import Meeting
from gradient_disclosure.gram.shared import SharedValue
from gradient_disclosure.gram.terms import Term
from gradient_disclosure.gram.trace import ParameterTrace
from gradient_disclosure.gram.uses import OpenUse

Accounts = dict[int, ParameterAccount]


class PassState:
    """The state of a pass, shared by those who watch layers, other modules and operations.

    Args:
        accounts: account of each parameter to follow, by ``id``.
        constants: tensors that no example has a part in.
        time_first: names of modules whose data are (time, batch, ...).
        verify: also check that modules with parameters of their own do not mix examples.
        micro_batches: number of forward and backward passes.
    """

    def __init__(
        self, accounts: Accounts, constants: Iterable[Tensor], time_first: set[str], verify: bool, micro_batches: int
    ) -> None:
        self.accounts = accounts
        self.verify = verify
        self.micro_batches = micro_batches
        self.kinds = TensorKinds((account.parameter for account in accounts.values()), constants)
        self.layout = BatchLayout(self.kinds, time_first)
        self.trace = ParameterTrace(self.kinds, self)
        self.frames: list[Frame] = []
        self.sources: list[tuple[Tensor, int]] = []
        self.active = False
        self._sizes: list[int] = []
        self._backward_began = False

    @property
    def batch_size_so_far(self) -> int | None:
        """Number of examples in the running pass, as far as is known."""
        return self.layout.size

    def batch_sizes(self) -> list[int]:
        """Number of examples of each micro-batch so far; empty if nothing has run."""
        size = self.layout.size
        return self._sizes + ([size] if size is not None and (self.layout.settled or size == 0) else [])

    def begin_if_new(self) -> None:
        """A module that runs after a backward pass, not within it, begins another micro-batch."""
        if self.micro_batches == 1 or torch._C._current_graph_task_id() != -1:
            return
        if not self._backward_began:
            return
        assert self.layout.size is not None
        self._sizes.append(self.layout.size)
        if len(self._sizes) == self.micro_batches:
            raise IncompleteGramError(
                f"more than micro_batches={self.micro_batches} forward and backward passes ran in one context"
            )
        for account in dict.fromkeys(self.accounts.values()):
            account.end_micro_batch()
        self.kinds.forget_values()
        self.frames = []
        self._backward_began = False
        self.layout.restart()

    def propose_batch_size(self, data: list[Tensor]) -> int | None:
        """The batch size, taken from data if nothing has told it yet."""
        if self.layout.size is None:
            self.layout.size = next((tensor.shape[0] for tensor in data if tensor.dim()), None)
        return self.layout.size

    def met(self, meeting: Meeting) -> None:
        """Shared values met the data at an operation."""
        accounts = {key: self.accounts[key] for value in meeting.values for key in value.parameters}

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            with self.quiet():
                for parameter, term in meeting.resolve(gradients):
                    yield id(parameter), term

        use = OpenUse(accounts, meeting.way, resolve, self.is_live)
        use.watch(meeting.watched, may_change=not meeting.watches_operands)
        self.layout.settled = True
        self.remember(use, meeting.outputs)

    def lost(self, values: list[SharedValue], reason: str) -> None:
        """Shared values were used in a way that cannot be resolved at the operation."""
        if self.layout.size == 0:
            return
        found = {key: reason for value in values for key in value.parameters}
        if self.frames:
            self.frames[-1].lost |= found
        else:
            raise refusal(self.accounts, found, mixes=False)

    def admits(self, values: list[SharedValue]) -> bool:
        """Whether an operation counts; not if checkpointing merely runs it again."""
        keys = {key for value in values for key in value.parameters}
        admitted = [self.accounts[key].admits_use() for key in keys]
        return all(admitted)

    def remember(self, use: OpenUse, outputs: Sequence[Tensor], axis: int = 0) -> None:
        """A use of what is running."""
        if self.frames:
            self.frames[-1].uses.append(use)
            if self.verify and in_first_forward():
                self.sources += [(tensor, axis) for tensor in outputs if tensor.requires_grad]

    def is_live(self) -> bool:
        """Whether what arrives belongs to the pass."""
        return self.active and not self.trace.paused

    def accounts_in(self, layer: nn.Module) -> dict[int, ParameterAccount]:
        """Accounts of the parameters of a layer, by ``id``."""
        own = layer._parameters.values() if not layer._modules else layer.parameters()
        return {id(p): self.accounts[id(p)] for p in own if id(p) in self.accounts}

    def pop(self, module: nn.Module) -> Frame | None:
        """The frame of a module that has run; those it left open are closed."""
        last = self.frames[-1] if self.frames else None
        if self.trace.paused and (last is None or not last.observed or last.module is not module):
            return None
        while self.frames:
            frame = self.frames.pop()
            if frame.module is module:
                return frame
            frame.release()
        return None

    def quiet(self) -> Quiet:
        """A context in which nothing is followed."""
        if torch._C._current_graph_task_id() != -1:
            self._backward_began = True
        return Quiet(self.trace)


class Quiet:
    """Nothing is followed while something is run again."""

    def __init__(self, trace: ParameterTrace) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        self._trace.paused += 1

    def __exit__(self, *unused: object) -> None:
        self._trace.paused -= 1
