"""Follows parameters through the forward pass to the operations where they meet the data.

A layer that is registered is observed at its boundary. Everything else (a bare parameter, a weight used outside the
layer that owns it, a table looked up once for the whole batch) is followed here, operation by operation, by a
``TorchFunctionMode`` that lives as long as the context and calls every function unchanged. (Two exceptions, with
bitwise the same result: an operand that a sum would broadcast over the examples is expanded before it, so that its
gradient can be had before autograd adds the examples up; and an output on which another one depends is copied.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gradient_disclosure.gram.kinds import OF_FIRST_ONLY, OF_SHAPE_ONLY, TensorKinds, changes_in_place, moves_rows
from gradient_disclosure.gram.meetings import Meeting, broadcast_meeting, generic_meeting, product_meeting
from gradient_disclosure.gram.outputs import told_apart
from gradient_disclosure.gram.shared import Operation, SharedValue, tensors_of

NO_TENSOR = frozenset({"dim", "size", "numel", "is_floating_point", "register_hook", "stride", "is_contiguous"})
NOTHING_RANDOM = frozenset({"__get__", "size", "dim", "numel", "is_floating_point", "expand", "view", "__getitem__"})


class Observer(Protocol):
    """What the trace reports to."""

    @property
    def batch_size_so_far(self) -> int | None:
        """Number of examples in the running pass, as far as is known."""

    def begin_if_new(self) -> None:
        """Begin another micro-batch if a backward pass has been run since the last one began."""

    def propose_batch_size(self, data: list[Tensor]) -> int | None:
        """The batch size, taken from data if nothing has told it yet."""

    def met(self, meeting: Meeting) -> None:
        """Shared values met the data; the gradient will arrive at ``meeting.watched``."""

    def lost(self, values: list[SharedValue], reason: str) -> None:
        """Shared values were used in a way that cannot be resolved at this operation."""

    def admits(self, values: list[SharedValue]) -> bool:
        """Whether an operation counts: not if checkpointing merely runs it again."""


class ParameterTrace(TorchFunctionMode):
    """Reports every meeting of shared values with data to an observer.

    Args:
        kinds: knows what each tensor is.
        observer: is told of the meetings.
    """

    def __init__(self, kinds: TensorKinds, observer: Observer) -> None:
        super().__init__()
        self.kinds = kinds
        self._observer = observer
        self.paused = 0
        """Positive while a registered layer runs, observed at its boundary, or while something is run again."""

    def is_on(self) -> bool:
        """Whether it follows what runs in this thread; within a backward pass it does not."""
        return any(mode is self for mode in torch.overrides._get_current_function_mode_stack())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.paused or func.__name__ in NO_TENSOR:
            return func(*args, **kwargs)
        if func.__name__ == "__get__":
            output = func(*args, **kwargs)
            if not isinstance(output, Tensor):  # x.shape, x.dtype, ...
                return output
        tensors = [tensor for part in args for tensor in ((part,) if isinstance(part, Tensor) else tensors_of(part))]
        if kwargs:
            tensors += tensors_of(kwargs)
        values = [value for tensor in tensors if (value := self.kinds.shared(tensor)) is not None]
        if values:
            return self._with_shared(Operation(func, args, kwargs), tensors, values)
        filled = tensors and changes_in_place(func.__name__, kwargs) and self.kinds.is_constant(tensors[0])
        if filled and any(self.kinds.is_data(tensor) for tensor in tensors):  # zeros that are filled with data
            self.kinds.add_data(tensors[0])
        output = func(*args, **kwargs)
        if isinstance(output, Tensor | tuple | list):
            self._classify(Operation(func, args, kwargs), tensors, output)
        return output

    def _classify(self, operation: Operation, tensors: list[Tensor], output: Any) -> None:
        name = operation.function.__name__
        counted = tensors[:1] if name in OF_FIRST_ONLY else [] if name in OF_SHAPE_ONLY else tensors
        data = [tensor for tensor in counted if self.kinds.is_data(tensor)]
        if data:
            size = self._observer.batch_size_so_far
            if size != 1 and any(self.kinds.is_mixed(t) or (t.dim() and t.shape[0] != 1) for t in data):
                for tensor in tensors_of(output):
                    if not tensor.requires_grad:
                        self.kinds.add_mixed(tensor)
            if moves_rows(name, operation.args, operation.kwargs, data[0].dim()):
                return
            self.kinds.follow_rows(name, data, output, self._observer.batch_size_so_far)
        else:
            for tensor in tensors_of(output):
                self.kinds.add_constant(tensor)

    def _with_shared(self, operation: Operation, tensors: list[Tensor], values: list[SharedValue]) -> Any:
        data = [tensor for tensor in tensors if self.kinds.is_data(tensor)]
        name = getattr(operation.function, "__name__", "")
        if torch.is_grad_enabled():
            self._observer.begin_if_new()
        changed = changes_in_place(name, operation.kwargs)
        if name == "__setitem__" or (changed and self.kinds.shared(tensors[0]) is not None):
            if torch.is_grad_enabled():
                self._observer.lost(values, f"'{name}' changes a tensor in place")
            if self.kinds.is_constant(tensors[0]):
                self.kinds.add_data(tensors[0])
            return operation.function(*operation.args, **operation.kwargs)
        if not data:
            return self._chain(operation, values)
        if self._observer.batch_size_so_far == 0:
            return operation.function(*operation.args, **operation.kwargs)
        return self._meeting(operation, name, values, data)

    def _chain(self, operation: Operation, values: list[SharedValue]) -> Any:
        name = operation.function.__name__
        before = None if name in NOTHING_RANDOM else torch.get_rng_state()
        output = operation.function(*operation.args, **operation.kwargs)
        if isinstance(output, Tensor | tuple | list):
            if before is not None and not torch.equal(before, torch.get_rng_state()):
                self._observer.lost(values, f"'{name}' draws random numbers for it")
            self.kinds.add_shared(operation, values, output)
        return output

    def _meeting(self, operation: Operation, name: str, values: list[SharedValue], data: list[Tensor]) -> Any:
        batch_size = self._observer.propose_batch_size(data)
        admitted = self._observer.admits(values)
        broadcast = broadcast_meeting(operation, name, values, data, self.kinds, batch_size)
        if broadcast is not None:  # also where a checkpoint only runs it again: it compares the tensors that are saved
            operation = broadcast.operation
        output = operation.function(*operation.args, **operation.kwargs)
        output = told_apart(output)
        outputs = tensors_of(output)
        if admitted and any(tensor.requires_grad for tensor in outputs):
            found = (
                broadcast
                or product_meeting(operation, name, values, data, outputs[0], self.kinds, batch_size)
                or generic_meeting(operation, values, data, outputs, self.kinds, batch_size)
            )
            if isinstance(found, str):
                self._observer.lost(values, found)
            else:
                self._observer.met(replace(found, outputs=tuple(outputs)))
        if not moves_rows(name, operation.args, operation.kwargs, data[0].dim()):
            self.kinds.follow_rows(name, data, output, batch_size)
        return output
