"""Known layers, observed at their boundary: inputs as they enter, output gradients as they arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from gradient_disclosure.errors import DisclosureError, IncompleteGramError
from gradient_disclosure.gram.call import ForwardState, LayerCall
from gradient_disclosure.gram.delivery import can_deliver, delivered
from gradient_disclosure.gram.embedding import ids_looked_up
from gradient_disclosure.gram.fold import folded
from gradient_disclosure.gram.frame import Frame, is_random
from gradient_disclosure.gram.meetings import input_meeting
from gradient_disclosure.gram.outputs import told_apart
from gradient_disclosure.gram.pass_state import Accounts, PassState
from gradient_disclosure.gram.registry import CallTerms
from gradient_disclosure.gram.shared import tensors_of
from gradient_disclosure.gram.terms import Term
from gradient_disclosure.gram.uses import OpenUse


class LayerObserver:
    """Makes the hooks of known layers.

    Args:
        state: of the pass.
        reuse: their parameters get the sum of the per-example gradients; autograd does not form their own.
    """

    def __init__(self, state: PassState, *, reuse: bool) -> None:
        self._state = state
        self._reuse = reuse

    def enter(self, name: str) -> Callable[..., Any]:
        """Hook for before a layer of this name runs."""

        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._state.trace.paused:
                return None
            with torch._C.DisableTorchFunction():  # what is looked at here need not be followed
                self._state.begin_if_new()
                data = self._state.layout.propose(name, args, kwargs, outermost=not self._state.frames)
                data = [tensor for tensor in data if not self._state.layout.take_for_all(name, tensor)]
                frame = Frame(name, layer, observed=bool(data))
                if data:
                    frame.state = ForwardState.now(data[0].device, random=is_random(layer))
                    args, kwargs = self._take_shared_inputs(name, args, kwargs)
                    self._state.trace.paused += 1
                    if self._reuse and torch.is_grad_enabled() and can_deliver(layer):
                        frame.hold(account.parameter for account in self._state.accounts_in(layer).values())
                self._state.frames.append(frame)
            return args, kwargs

        return enter

    def _take_shared_inputs(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What a layer gets beside the data may itself come from parameters: learned queries, say."""

        def take(tensor: Tensor) -> Tensor:
            value = self._state.kinds.shared(tensor)
            if value is None:
                return tensor
            if not self._state.admits([value]):
                return tensor.view_as(tensor)
            meeting = input_meeting(value, self._state.layout.axis(name), self._state.layout.size)
            if isinstance(meeting, str):
                self._state.lost([value], f"'{name}' gets it as an input, and {meeting}")
                return tensor
            self._state.met(meeting)
            return meeting.watched[0]

        if not any(self._state.kinds.shared(tensor) for tensor in tensors_of((args, kwargs))):
            return args, kwargs
        args, kwargs = tree_map_only(Tensor, take, (args, kwargs))
        return args, kwargs

    def leave(self, terms: CallTerms) -> Callable[..., Any]:
        """Hook for after a layer whose terms are found so has run."""

        def leave(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            frame = self._state.pop(layer)
            if frame is None or not frame.observed:
                return output
            self._state.trace.paused -= 1
            with torch._C.DisableTorchFunction():
                held = {id(parameter) for parameter in frame.release()}
                output = told_apart(output)
                accounts = self._state.accounts_in(layer)
                admitted = [account.admits_use() for account in accounts.values()]
                counted = accounts if all(admitted) else {}
                if held:
                    delivers = {key: account for key, account in accounts.items() if key in held}
                    output = self._deliver(frame, args, kwargs, output, terms, counted, delivers)
                elif counted:
                    self._watch(frame, args, kwargs, output, terms, counted)
                data = [tensor for tensor in tensors_of((args, kwargs)) if self._state.kinds.is_data(tensor)]
                self._state.kinds.follow_rows("", data, output, self._state.layout.size)
            return output

        return leave

    def _watch(self, frame: Frame, args: Any, kwargs: Any, output: Any, terms: CallTerms, accounts: Accounts) -> None:
        outputs = tensors_of(output)
        watched = [tensor for tensor in outputs if tensor.requires_grad]
        if watched:
            rows = self._state.layout.rows(frame.name, frame.module, args, kwargs, outputs)
            if self._state.layout.size:
                resolve = self._resolver(frame, args, kwargs, terms, rows)
                ids = ids_looked_up(frame.module, args, kwargs)
                use = OpenUse(accounts, type(frame.module).__name__, resolve, self._state.is_live, ids=ids)
                use.watch(watched)
                self._state.remember(use, outputs[:1], self._state.layout.axis(frame.name))

    def _deliver(
        self, frame: Frame, args: Any, kwargs: Any, output: Any, terms: CallTerms, counted: Accounts, delivers: Accounts
    ) -> Any:
        """The output of a layer that ran as if its parameters needed no gradient."""
        outputs = tensors_of(output)
        if not any(tensor.is_floating_point() for tensor in outputs):
            return output
        rows = self._state.layout.rows(frame.name, frame.module, args, kwargs, outputs)
        if not self._state.layout.size:
            parameters = [account.parameter for account in delivers.values()]
            return delivered(output, parameters, lambda _: [torch.zeros_like(each) for each in parameters])
        resolve = self._resolver(frame, args, kwargs, terms, rows)
        ids = ids_looked_up(frame.module, args, kwargs)
        use = OpenUse(counted, type(frame.module).__name__, resolve, self._state.is_live, ids=ids)
        self._state.remember(use, [])
        return use.deliver(output, delivers)

    def _resolver(
        self, frame: Frame, args: tuple[Any, ...], kwargs: dict[str, Any], terms: CallTerms, rows: int
    ) -> Callable[[Sequence[Tensor | None]], Iterator[tuple[int, Term]]]:
        name, layer, state = frame.name, frame.module, frame.state
        assert state is not None
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
            args = (args[0].detach(),)
        else:
            args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.detach(), (args, kwargs))
        inputs = tensors_of((args, kwargs))
        versions = [tensor._version for tensor in inputs]
        batch_size = self._state.layout.size
        assert batch_size is not None

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            if [tensor._version for tensor in inputs] != versions:
                raise IncompleteGramError(f"the input of '{name}' was changed in place before the backward pass")
            call = LayerCall(
                layer, args, kwargs, tuple(gradients), state, batch_size * rows, self._state.layout.axis(name) == 1
            )
            with self._state.quiet(), _naming(name):
                for local, term in terms(call):
                    yield id(layer.get_parameter(local)), folded(term, rows)

        return resolve


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say which layer an error is about; the layer's own function does not know its name."""
    try:
        yield
    except DisclosureError as error:
        raise type(error)(f"'{name}': {error}") from error
