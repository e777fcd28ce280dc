"""Watches one forward pass of a module: which layers run, on what, and where parameters meet the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from gradient_disclosure.errors import DisclosureError, IncompleteGramError
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.batch_layout import BatchLayout
from gradient_disclosure.gram.call import ForwardState, LayerCall
from gradient_disclosure.gram.delivery import can_deliver, delivered
from gradient_disclosure.gram.distributed.unsharded import UnshardedParameters
from gradient_disclosure.gram.embedding import ids_looked_up
from gradient_disclosure.gram.fallback import mixing_refusal, module_run, refusal
from gradient_disclosure.gram.fold import folded
from gradient_disclosure.gram.frame import Frame, in_first_forward, is_checkpointed, is_random, versions
from gradient_disclosure.gram.kinds import TensorKinds
from gradient_disclosure.gram.meetings import Meeting, input_meeting
from gradient_disclosure.gram.mixing import mixes_examples
from gradient_disclosure.gram.outputs import told_apart
from gradient_disclosure.gram.registry import CallTerms, call_terms_of, refuse_batch_coupling
from gradient_disclosure.gram.rerun import MIXES
from gradient_disclosure.gram.shared import SharedValue, tensors_of
from gradient_disclosure.gram.terms import Term
from gradient_disclosure.gram.trace import ParameterTrace
from gradient_disclosure.gram.uses import OpenUse

Accounts = dict[int, ParameterAccount]


class PassObserver:
    """Hooks a module for as long as a context lives and reports uses of its parameters to their accounts.

    Args:
        module: the module.
        accounts: account of each parameter to follow, by ``id``.
        time_first: names of modules whose data are (time, batch, ...).
        verify: also check that modules with parameters of their own do not mix examples.
        micro_batches: number of forward and backward passes.
        reuse: parameters of known layers get the sum of the per-example gradients; autograd does not form their own.
    """

    def __init__(
        self,
        module: nn.Module,
        accounts: dict[int, ParameterAccount],
        time_first: set[str],
        verify: bool,
        micro_batches: int,
        *,
        reuse: bool = False,
    ) -> None:
        self._module = module
        self._accounts = dict(accounts)
        self._verify = verify
        self._reuse = reuse
        self._kinds = TensorKinds((account.parameter for account in accounts.values()), _constants_of(module))
        self._sharding = UnshardedParameters(module, self._accounts, self._kinds)
        self._layout = BatchLayout(self._kinds, time_first)
        self._trace = ParameterTrace(self._kinds, self)
        self._frames: list[Frame] = []
        self._handles: list[Any] = []
        self._sources: list[tuple[Tensor, int]] = []
        self._sizes: list[int] = []
        self._backward_began = False
        self._micro_batches = micro_batches
        self.active = False

    @property
    def batch_size_so_far(self) -> int | None:
        """Number of examples in the running pass, as far as is known."""
        return self._layout.size

    def batch_sizes(self) -> list[int]:
        """Number of examples of each micro-batch so far; empty if nothing has run."""
        size = self._layout.size
        return self._sizes + ([size] if size is not None and (self._layout.settled or size == 0) else [])

    # ------------------------------------------------------------------ life

    def attach(self) -> None:
        """Register the hooks and begin to follow the parameters."""
        self._sharding.attach()
        inside: set[int] = set()
        concerned: dict[int, bool] = {}
        self._concerns(self._module, concerned)
        for name, child in self._module.named_modules():
            refuse_batch_coupling(name, child)
            if id(child) in inside or not concerned[id(child)]:
                continue
            terms = call_terms_of(child)
            if terms is not None:
                inside |= {id(part) for part in child.modules()} if child._modules else set()
                enter, leave = self._enter_layer(name), self._leave_layer(terms)
            else:
                enter, leave = self._enter_module(name), self._leave_module
            enter, leave = self._only_for(child, enter, None), self._only_for(child, leave, 2)
            self._handles += [
                child.register_forward_pre_hook(enter, with_kwargs=True),
                child.register_forward_hook(leave, with_kwargs=True, always_call=True, prepend=True),
            ]
        self._refuse_nesting()
        self.active = True
        self._trace.__enter__()

    def _has_hooks(self) -> bool:
        """Whether somebody else counts backward passes (Opacus does): then none may be run but the real one."""
        return bool(self._sharding) or any(
            child._backward_hooks or child._backward_pre_hooks for child in self._module.modules()
        )

    def _refuse_nesting(self) -> None:
        for mode in torch.overrides._get_current_function_mode_stack():
            if isinstance(mode, ParameterTrace) and mode.kinds.follows(self._accounts):
                raise DisclosureError("another GradientGram is open on the same parameters: close it first")

    def _only_for(self, owner: nn.Module, hook: Callable[..., Any], result: int | None) -> Callable[..., Any]:
        """A hook that does nothing on a copy of the module, nor after the context."""

        def called(module: nn.Module, *given: Any) -> Any:
            if module is owner and self.active:
                return hook(module, *given)
            return None if result is None else given[result]

        return called

    def _concerns(self, module: nn.Module, known: dict[int, bool]) -> bool:
        """Whether a module owns parameters to follow, or contains modules that do; of all modules within, by ``id``."""
        if id(module) not in known:
            within = [self._concerns(child, known) for child in module._modules.values() if child is not None]
            known[id(module)] = any(within) or any(id(p) in self._accounts for p in module._parameters.values())
        return known[id(module)]

    def detach(self) -> None:
        """Remove everything."""
        if self.active:
            self._trace.__exit__(None, None, None)
        self.active = False
        self._sharding.detach()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for frame in self._frames:
            frame.release()
        self._frames = []

    def begin_if_new(self) -> None:
        """A module that runs after a backward pass, not within it, begins another micro-batch."""
        if self._micro_batches == 1 or torch._C._current_graph_task_id() != -1:
            return
        if not self._backward_began:
            return
        assert self._layout.size is not None
        self._sizes.append(self._layout.size)
        if len(self._sizes) == self._micro_batches:
            raise IncompleteGramError(
                f"more than micro_batches={self._micro_batches} forward and backward passes ran in one context"
            )
        for account in dict.fromkeys(self._accounts.values()):
            account.end_micro_batch()
        self._kinds.forget_values()
        self._frames = []
        self._backward_began = False
        self._layout.restart()

    # ------------------------------------------------------------------ layers observed at their boundary

    def _enter_layer(self, name: str) -> Callable[..., Any]:
        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self._trace.paused:
                return None
            with torch._C.DisableTorchFunction():  # what is looked at here need not be followed
                self.begin_if_new()
                data = self._layout.propose(name, args, kwargs, outermost=not self._frames)
                data = [tensor for tensor in data if not self._layout.take_for_all(name, tensor)]
                frame = Frame(name, layer, observed=bool(data))
                if data:
                    frame.state = ForwardState.now(data[0].device, random=is_random(layer))
                    args, kwargs = self._take_shared_inputs(name, args, kwargs)
                    self._trace.paused += 1
                    if self._reuse and torch.is_grad_enabled() and can_deliver(layer):
                        frame.hold(account.parameter for account in self._accounts_in(layer).values())
                self._frames.append(frame)
            return args, kwargs

        return enter

    def _take_shared_inputs(self, name: str, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What a layer gets beside the data may itself come from parameters: learned queries, say."""

        def take(tensor: Tensor) -> Tensor:
            value = self._kinds.shared(tensor)
            if value is None:
                return tensor
            if not self.admits([value]):
                return tensor.view_as(tensor)
            meeting = input_meeting(value, self._layout.axis(name), self._layout.size)
            if isinstance(meeting, str):
                self.lost([value], f"'{name}' gets it as an input, and {meeting}")
                return tensor
            self.met(meeting)
            return meeting.watched[0]

        if not any(self._kinds.shared(tensor) for tensor in tensors_of((args, kwargs))):
            return args, kwargs
        args, kwargs = tree_map_only(Tensor, take, (args, kwargs))
        return args, kwargs

    def _leave_layer(self, terms: CallTerms) -> Callable[..., Any]:
        def leave(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            frame = self._pop(layer)
            if frame is None or not frame.observed:
                return output
            self._trace.paused -= 1
            with torch._C.DisableTorchFunction():
                held = {id(parameter) for parameter in frame.release()}
                output = told_apart(output)
                accounts = self._accounts_in(layer)
                admitted = [account.admits_use() for account in accounts.values()]
                counted = accounts if all(admitted) else {}
                if held:
                    delivers = {key: account for key, account in accounts.items() if key in held}
                    output = self._deliver_layer(frame, args, kwargs, output, terms, counted, delivers)
                elif counted:
                    self._watch_layer(frame, args, kwargs, output, terms, counted)
                data = [tensor for tensor in tensors_of((args, kwargs)) if self._kinds.is_data(tensor)]
                self._kinds.follow_rows("", data, output, self._layout.size)
            return output

        return leave

    def _watch_layer(
        self, frame: Frame, args: Any, kwargs: Any, output: Any, terms: CallTerms, accounts: Accounts
    ) -> None:
        outputs = tensors_of(output)
        watched = [tensor for tensor in outputs if tensor.requires_grad]
        if watched:
            rows = self._layout.rows(frame.name, frame.module, args, kwargs, outputs)
            if self._layout.size:
                resolve = self._layer_resolver(frame, args, kwargs, terms, rows)
                ids = ids_looked_up(frame.module, args, kwargs)
                use = OpenUse(accounts, type(frame.module).__name__, resolve, self._is_live, ids=ids)
                use.watch(watched)
                self._remember(use, outputs[:1], self._layout.axis(frame.name))

    def _deliver_layer(
        self, frame: Frame, args: Any, kwargs: Any, output: Any, terms: CallTerms, counted: Accounts, delivers: Accounts
    ) -> Any:
        """The output of a layer that ran as if its parameters needed no gradient."""
        outputs = tensors_of(output)
        if not any(tensor.is_floating_point() for tensor in outputs):
            return output
        rows = self._layout.rows(frame.name, frame.module, args, kwargs, outputs)
        if not self._layout.size:
            parameters = [account.parameter for account in delivers.values()]
            return delivered(output, parameters, lambda _: [torch.zeros_like(each) for each in parameters])
        resolve = self._layer_resolver(frame, args, kwargs, terms, rows)
        ids = ids_looked_up(frame.module, args, kwargs)
        use = OpenUse(counted, type(frame.module).__name__, resolve, self._is_live, ids=ids)
        self._remember(use, [])
        return use.deliver(output, delivers)

    def _layer_resolver(
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
        batch_size = self._layout.size
        assert batch_size is not None

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            if [tensor._version for tensor in inputs] != versions:
                raise IncompleteGramError(f"the input of '{name}' was changed in place before the backward pass")
            call = LayerCall(
                layer, args, kwargs, tuple(gradients), state, batch_size * rows, self._layout.axis(name) == 1
            )
            with self.quiet(), _naming(name):
                for local, term in terms(call):
                    yield id(layer.get_parameter(local)), folded(term, rows)

        return resolve

    # ------------------------------------------------------------------ other modules

    def _enter_module(self, name: str) -> Callable[..., Any]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._trace.paused:
                return
            self.begin_if_new()
            if not self._frames and not name and self._micro_batches > 1 and self._layout.settled:
                raise IncompleteGramError(
                    "the module ran twice before a backward pass: with micro_batches each forward pass is followed by "
                    "its backward pass."
                )
            self._layout.propose(name, args, kwargs, outermost=not self._frames)
            frame = Frame(name, module, versions=versions(args, kwargs), checkpointed=is_checkpointed())
            if not in_first_forward() and torch.is_grad_enabled() and not self._trace.is_on():
                self._trace.__enter__()
                frame.switched_on = True
            self._frames.append(frame)

        return enter

    def _leave_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        frame = self._pop(module)
        if frame is None:
            return output
        if frame.switched_on:
            self._trace.__exit__(None, None, None)
        outer = self._frames[-1] if self._frames else None
        if outer is not None:
            outer.uses += frame.uses
            outer.checkpointed |= frame.checkpointed
        if frame.lost:
            output = told_apart(output)
            reason = self._run_again(frame, args, kwargs, output, outer)
            if reason is not None:
                self._pass_on(frame, reason, outer)
        if outer is None and self._verify and not frame.checkpointed and in_first_forward() and not self._has_hooks():
            self._refuse_mixing(frame, output)
        return output

    def _run_again(self, frame: Frame, args: Any, kwargs: Any, output: Any, outer: Frame | None) -> str | None:
        """Take the lost parameters from the whole module; the reason why not, if that cannot be done."""
        wanted = [(name, p) for name, p in frame.module.named_parameters() if id(p) in frame.lost]
        if len(wanted) < len(frame.lost):
            return "some of the parameters are not its own"
        run = module_run(frame, args, kwargs, output, self._kinds, self._layout)
        if isinstance(run, str):
            return run
        with self.quiet():
            problem = run.problem()
        if problem is not None:
            return problem
        for use in frame.uses:
            use.cancel(set(frame.lost))
        resolve = run.resolver(wanted)

        def resolved(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            arrived = dict(zip(watched, gradients, strict=True))
            spread = [arrived.get(at) for at in range(len(outputs))]
            with self.quiet():
                for parameter, term in resolve(spread):
                    yield id(parameter), term

        outputs = tensors_of(output)
        known = {id(tensor): at for at, tensor in reversed(list(enumerate(outputs))) if tensor.requires_grad}
        watched = sorted(known.values())  # a tensor that is returned twice has one gradient
        self._layout.settled = True
        accounts = {key: self._accounts[key] for key in frame.lost}
        use = OpenUse(accounts, f"{type(frame.module).__name__} again under vmap", resolved, self._is_live)
        use.watch([outputs[at] for at in watched])
        if outer is not None:
            outer.uses.append(use)
        return None

    def _pass_on(self, frame: Frame, reason: str, outer: Frame | None) -> None:
        lost = {key: f"{known}; {frame.described}: {reason}" for key, known in frame.lost.items()}
        if outer is None or reason == MIXES:
            raise refusal(self._accounts, lost, mixes=reason == MIXES)
        outer.lost |= lost

    def _refuse_mixing(self, frame: Frame, output: Any) -> None:
        """No example may act on the output of another, from the parameters it meets first to the end."""
        with self.quiet():
            mixes = mixes_examples(tensors_of(output), self._sources, self._layout.size)
        self._sources = []
        if mixes:
            raise mixing_refusal(frame)

    # ------------------------------------------------------------------ what the trace reports

    def propose_batch_size(self, data: list[Tensor]) -> int | None:
        """The batch size, taken from data if nothing has told it yet."""
        if self._layout.size is None:
            self._layout.size = next((tensor.shape[0] for tensor in data if tensor.dim()), None)
        return self._layout.size

    def met(self, meeting: Meeting) -> None:
        """Shared values met the data at an operation."""
        accounts = {key: self._accounts[key] for value in meeting.values for key in value.parameters}

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            with self.quiet():
                for parameter, term in meeting.resolve(gradients):
                    yield id(parameter), term

        use = OpenUse(accounts, meeting.way, resolve, self._is_live)
        use.watch(meeting.watched, may_change=not meeting.watches_operands)
        self._layout.settled = True
        self._remember(use, meeting.outputs)

    def lost(self, values: list[SharedValue], reason: str) -> None:
        """Shared values were used in a way that cannot be resolved at the operation."""
        if self._layout.size == 0:
            return
        found = {key: reason for value in values for key in value.parameters}
        if self._frames:
            self._frames[-1].lost |= found
        else:
            raise refusal(self._accounts, found, mixes=False)

    def admits(self, values: list[SharedValue]) -> bool:
        """Whether an operation counts; not if checkpointing merely runs it again."""
        keys = {key for value in values for key in value.parameters}
        admitted = [self._accounts[key].admits_use() for key in keys]
        return all(admitted)

    # ------------------------------------------------------------------ small things

    def _remember(self, use: OpenUse, outputs: Sequence[Tensor], axis: int = 0) -> None:
        if self._frames:
            self._frames[-1].uses.append(use)
            if self._verify and in_first_forward():
                self._sources += [(tensor, axis) for tensor in outputs if tensor.requires_grad]

    def _is_live(self) -> bool:
        return self.active and not self._trace.paused

    def _accounts_in(self, layer: nn.Module) -> dict[int, ParameterAccount]:
        own = layer._parameters.values() if not layer._modules else layer.parameters()
        return {id(p): self._accounts[id(p)] for p in own if id(p) in self._accounts}

    def _pop(self, module: nn.Module) -> Frame | None:
        last = self._frames[-1] if self._frames else None
        if self._trace.paused and (last is None or not last.observed or last.module is not module):
            return None
        while self._frames:
            frame = self._frames.pop()
            if frame.module is module:
                return frame
            frame.release()
        return None

    def quiet(self) -> Quiet:
        """A context in which nothing is followed."""
        if torch._C._current_graph_task_id() != -1:
            self._backward_began = True
        return Quiet(self._trace)


class Quiet:
    """Nothing is followed while something is run again."""

    def __init__(self, trace: ParameterTrace) -> None:
        self._trace = trace

    def __enter__(self) -> None:
        self._trace.paused += 1

    def __exit__(self, *unused: object) -> None:
        self._trace.paused -= 1


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say which layer an error is about; the layer's own function does not know its name."""
    try:
        yield
    except DisclosureError as error:
        raise type(error)(f"'{name}': {error}") from error


def _constants_of(module: nn.Module) -> Iterator[Tensor]:
    """Tensors of a module that no example has a part in: buffers, parameters not to follow, plain attributes."""
    for child in module.modules():
        for held in (child._buffers, child._parameters, vars(child)):
            yield from (value for value in held.values() if isinstance(value, Tensor))
