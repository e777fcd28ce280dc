"""Watches one forward pass of a module: which layers run, on what, and where parameters meet the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from gradient_disclosure.errors import BatchCouplingError, DisclosureError, IncompleteGramError, UnsupportedLayerError
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.call import ForwardState, LayerCall
from gradient_disclosure.gram.fold import folded
from gradient_disclosure.gram.kinds import TensorKinds
from gradient_disclosure.gram.meetings import Meeting
from gradient_disclosure.gram.mixing import mixes_examples
from gradient_disclosure.gram.outputs import told_apart
from gradient_disclosure.gram.registry import CallTerms, call_terms_of, refuse_batch_coupling
from gradient_disclosure.gram.rerun import MIXES, ModuleRun
from gradient_disclosure.gram.shared import SharedValue, tensors_of
from gradient_disclosure.gram.terms import Term
from gradient_disclosure.gram.trace import ParameterTrace
from gradient_disclosure.gram.uses import OpenUse

PLAIN = (Tensor, int, float, bool, str, bytes, complex, torch.dtype, torch.device, slice)


@dataclass(eq=False)
class Frame:
    """A module that is running.

    Attributes:
        name: qualified name.
        module: the module.
        observed: it is observed at its boundary, what happens inside is not looked at.
        state: random state and autocast before it ran, if observed.
        versions: of its argument tensors before it ran.
        uses: uses of parameters inside it so far.
        lost: parameters whose use inside it could not be resolved, with the reason.
        own_meetings: parameters met data in its own forward.
        checkpointed: a part of it runs under gradient checkpointing.
        switched_on: the trace was switched on for this module (a checkpoint that is run again).
        sources: what a check for mixed examples starts from: outputs of its layers and of its own meetings.
    """

    name: str
    module: nn.Module
    observed: bool = False
    state: ForwardState | None = None
    versions: tuple[int, ...] = ()
    uses: list[OpenUse] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    own_meetings: bool = False
    checkpointed: bool = False
    switched_on: bool = False
    sources: list[Tensor] = field(default_factory=list)


class PassObserver:
    """Hooks a module for as long as a context lives and reports uses of its parameters to their accounts.

    Args:
        module: the module.
        accounts: account of each parameter to follow, by ``id``.
        time_first: names of modules whose data are (time, batch, ...).
        verify: also check that modules with parameters of their own do not mix examples.
    """

    def __init__(
        self, module: nn.Module, accounts: dict[int, ParameterAccount], time_first: set[str], verify: bool
    ) -> None:
        self._module = module
        self._accounts = accounts
        self._time_first = time_first
        self._verify = verify
        self._kinds = TensorKinds((account.parameter for account in accounts.values()), module.buffers())
        self._trace = ParameterTrace(self._kinds, self)
        self._frames: list[Frame] = []
        self._handles: list[Any] = []
        self._settled = False
        self._sizes: list[int] = []
        self._backward_began = False
        self.micro_batches = 1
        self.active = False
        self.batch_size_so_far: int | None = None

    def batch_sizes(self) -> list[int]:
        """Number of examples of each micro-batch so far; empty if nothing has run."""
        known = self.batch_size_so_far is not None and (self._settled or self.batch_size_so_far == 0)
        return self._sizes + ([self.batch_size_so_far] if known else [])  # type: ignore[list-item]

    # ------------------------------------------------------------------ life

    def attach(self) -> None:
        """Register the hooks and begin to follow the parameters."""
        inside: set[int] = set()
        for name, child in self._module.named_modules():
            refuse_batch_coupling(name, child)
            if id(child) in inside or not any(id(p) in self._accounts for p in child.parameters()):
                continue
            terms = call_terms_of(child)
            if terms is not None:
                inside |= {id(part) for part in child.modules()}
                enter, leave = self._enter_layer(name), self._leave_layer(name, terms)
            else:
                enter, leave = self._enter_module(name), self._leave_module
            self._handles += [
                child.register_forward_pre_hook(enter, with_kwargs=True),
                child.register_forward_hook(leave, with_kwargs=True, always_call=True),
            ]
        self.active = True
        self._trace.__enter__()

    def detach(self) -> None:
        """Remove everything."""
        if self.active:
            self._trace.__exit__(None, None, None)
        self.active = False
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._frames = []

    def _begin_if_new(self) -> None:
        """A module that runs after a backward pass, not within it, begins another micro-batch."""
        if self.micro_batches == 1 or not self._backward_began or torch._C._current_graph_task_id() != -1:
            return
        assert self.batch_size_so_far is not None
        self._sizes.append(self.batch_size_so_far)
        if len(self._sizes) == self.micro_batches:
            raise IncompleteGramError(
                f"more than micro_batches={self.micro_batches} forward and backward passes ran in one context"
            )
        for account in self._accounts.values():
            account.end_micro_batch()
        self._kinds.forget_values()
        self._frames = []
        self._settled = self._backward_began = False
        self.batch_size_so_far = None

    # ------------------------------------------------------------------ layers observed at their boundary

    def _enter_layer(self, name: str) -> Callable[..., Any]:
        def enter(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._trace.paused:
                return
            self._begin_if_new()
            data = self._propose_batch_size(name, args, kwargs)
            frame = Frame(name, layer, observed=bool(data))
            if data:
                frame.state = ForwardState.now(data[0].device, random=layer.training and _is_random(layer))
                self._trace.paused += 1
            self._frames.append(frame)

        return enter

    def _leave_layer(self, name: str, terms: CallTerms) -> Callable[..., Any]:
        def leave(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            frame = self._pop(layer)
            if frame is None or not frame.observed:
                return output
            output = told_apart(output)
            self._trace.paused -= 1
            accounts = self._accounts_in(layer)
            admitted = [account.admits_use() for account in accounts.values()]
            if not all(admitted):
                return output
            outputs = tensors_of(output)
            if any(tensor.requires_grad for tensor in outputs):
                assert frame.state is not None
                rows = self._rows(name, args, kwargs, outputs)
                if self.batch_size_so_far == 0:
                    return output
                use = self._layer_use(layer, args, kwargs, frame.state, terms, accounts, rows, name)
                use.watch([tensor for tensor in outputs if tensor.requires_grad])
                self._remember(use, outputs)
            data = [tensor for tensor in tensors_of((args, kwargs)) if self._kinds.is_data(tensor)]
            self._kinds.follow_rows("", data, output, self.batch_size_so_far)
            return output

        return leave

    def _layer_use(
        self,
        layer: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: ForwardState,
        terms: CallTerms,
        accounts: dict[int, ParameterAccount],
        rows: int,
        name: str,
    ) -> OpenUse:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.detach(), (args, kwargs))
        inputs = tensors_of((args, kwargs))
        versions = [tensor._version for tensor in inputs]
        batch_size = self.batch_size_so_far
        assert batch_size is not None

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            if [tensor._version for tensor in inputs] != versions:
                raise IncompleteGramError(f"the input of '{name}' was changed in place before the backward pass")
            call = LayerCall(layer, args, kwargs, tuple(gradients), state, batch_size * rows, name in self._time_first)
            with self._quiet(), _naming(name):
                for local, term in terms(call):
                    yield id(layer.get_parameter(local)), folded(term, rows)

        return OpenUse(accounts, type(layer).__name__, resolve, self._is_live)

    def _rows(self, name: str, args: Any, kwargs: Any, outputs: Sequence[Tensor]) -> int:
        """Consecutive rows of one example in the layer's input; settles the batch size at the first layer."""
        axis = 1 if name in self._time_first else 0
        data = [t for t in tensors_of((args, kwargs)) if self._kinds.is_data(t) and t.dim() > axis]
        first = data[0] if data else outputs[0]
        layer = self._module.get_submodule(name)
        if isinstance(layer, nn.EmbeddingBag):  # its bags are the examples; the ids may be one flat list
            first = outputs[0]
        size = first.shape[axis]
        rows = 1 if size == self.batch_size_so_far else None
        if rows is None and axis == 0:
            rows = self._kinds.rows_per_example(first, self.batch_size_so_far)
        certain = axis == 1 or isinstance(layer, nn.EmbeddingBag) or self.batch_size_so_far is None
        if rows is None and certain and not self._settled:
            self.batch_size_so_far, rows = size, 1
        if rows is None:
            raise IncompleteGramError(
                f"'{name}' received {size} rows where the batch has {self.batch_size_so_far}: its first axis "
                "is not the batch (or another batch ran in the same context), so its rows cannot be told apart by "
                "example. Keep the batch as first axis through this layer, or name the layers that get time first "
                f"with time_first=['{name}']."
            )
        self._settled = True
        return rows

    # ------------------------------------------------------------------ other modules

    def _enter_module(self, name: str) -> Callable[..., Any]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._trace.paused:
                return
            self._begin_if_new()
            self._propose_batch_size(name, args, kwargs)
            frame = Frame(name, module, versions=_versions(args, kwargs), checkpointed=_is_checkpointed())
            frame.sources = [tensor for tensor in tensors_of((args, kwargs)) if tensor.requires_grad]
            if not _in_first_forward() and torch.is_grad_enabled() and not self._trace.is_on():
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
        elif self._verify and frame.own_meetings and not frame.checkpointed and _in_first_forward():
            self._refuse_mixing(frame, args, kwargs, output)
        return output

    def _run_again(self, frame: Frame, args: Any, kwargs: Any, output: Any, outer: Frame | None) -> str | None:
        """Take the lost parameters from the whole module; the reason why not, if that cannot be done."""
        wanted = [(name, p) for name, p in frame.module.named_parameters() if id(p) in frame.lost]
        if len(wanted) < len(frame.lost):
            return "some of the parameters are not its own"
        run = self._module_run(frame, args, kwargs, output)
        if isinstance(run, str):
            return run
        with self._quiet():
            problem = run.problem()
        if problem is not None:
            return problem
        for use in frame.uses:
            use.cancel(set(frame.lost))
        resolve = run.resolver(wanted)

        def resolved(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            arrived = iter(gradients)
            spread = [next(arrived) if tensor.requires_grad else None for tensor in outputs]
            with self._quiet():
                for parameter, term in resolve(spread):
                    yield id(parameter), term

        outputs = tensors_of(output)
        self._settled = True
        accounts = {key: self._accounts[key] for key in frame.lost}
        use = OpenUse(accounts, f"{type(frame.module).__name__} again under vmap", resolved, self._is_live)
        use.watch([tensor for tensor in outputs if tensor.requires_grad])
        if outer is not None:
            outer.uses.append(use)
        return None

    def _module_run(self, frame: Frame, args: Any, kwargs: Any, output: Any) -> ModuleRun | str:
        axis = 1 if frame.name in self._time_first else 0
        size = self.batch_size_so_far
        outputs = tensors_of(output)

        def axis_of(tensor: Tensor) -> int | None:
            held = tensor.dim() > axis and tensor.shape[axis] == size
            return axis if held and self._kinds.is_data(tensor) else None

        if not size or not outputs or any(t.dim() <= axis or t.shape[axis] != size for t in outputs):
            return f"axis {axis} of what it returns is not the examples"
        if not _is_plain((args, kwargs)):
            return "it is called with objects that running it again could change"
        if _versions(args, kwargs) != frame.versions:
            return "it changes its inputs in place"
        return ModuleRun(frame.module, args, kwargs, axis_of, outputs, [axis] * len(outputs), size)

    def _pass_on(self, frame: Frame, reason: str, outer: Frame | None) -> None:
        described = f"'{frame.name}' ({type(frame.module).__name__}): {reason}"
        if outer is not None and reason != MIXES:
            outer.lost |= {key: f"{known}; {described}" for key, known in frame.lost.items()}
            return
        self._refuse({key: f"{known}; {described}" for key, known in frame.lost.items()}, reason == MIXES)

    def _refuse(self, lost: dict[int, str], mixes: bool) -> None:
        reasons = "; ".join(f"'{self._accounts[key].name}': {reason}" for key, reason in lost.items())
        kind = BatchCouplingError if mixes else UnsupportedLayerError
        raise kind(
            f"no exact per-example gradient can be had for {reasons}. Freeze these parameters "
            "(requires_grad_(False)), switch the dropout inside off, keep the batch as first axis, register a function "
            "for the layer with gradient_disclosure.gram.register_gram_terms, or leave the parameters out on purpose "
            "with exclude=[...]."
        )

    def _refuse_mixing(self, frame: Frame, args: Any, kwargs: Any, output: Any) -> None:
        """A module that uses parameters of its own must not let one example act on the output of another."""
        with self._quiet():
            mixes = mixes_examples(tensors_of(output), frame.sources, self.batch_size_so_far)
        if not mixes and not any(True for child in frame.module.children() for _ in child.parameters()):
            run = self._module_run(frame, args, kwargs, output)  # small: also what no gradient reaches
            if not isinstance(run, str):
                with self._quiet():
                    mixes = run.problem() == MIXES
        if mixes:
            raise BatchCouplingError(
                f"'{frame.name}' ({type(frame.module).__name__}) mixes the examples of a batch: what one example gets "
                "depends on the others, so it has no gradient of its own. Replace what works across the batch (a batch "
                "statistic, a softmax over axis 0), or exclude the parameters of this module."
            )

    # ------------------------------------------------------------------ what the trace reports

    def met(self, meeting: Meeting) -> None:
        """Shared values met the data at an operation."""
        accounts = {key: self._accounts[key] for value in meeting.values for key in value.parameters()}

        def resolve(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            with self._quiet():
                for parameter, term in meeting.resolve(gradients):
                    yield id(parameter), term

        use = OpenUse(accounts, meeting.way, resolve, self._is_live)
        use.watch(meeting.watched, may_change=not meeting.watches_operands)
        self._settled = True
        self._remember(use, meeting.outputs)
        if self._frames:
            self._frames[-1].own_meetings = True

    def lost(self, values: list[SharedValue], reason: str) -> None:
        """Shared values were used in a way that cannot be resolved at the operation."""
        if self.batch_size_so_far == 0:
            return
        found = {key: reason for value in values for key in value.parameters()}
        if self._frames:
            self._frames[-1].lost |= found
        else:
            self._refuse(found, mixes=False)

    def admits(self, values: list[SharedValue]) -> bool:
        """Whether an operation counts; not if checkpointing merely runs it again."""
        keys = {key for value in values for key in value.parameters()}
        admitted = [self._accounts[key].admits_use() for key in keys]
        return all(admitted)

    # ------------------------------------------------------------------ small things

    def _remember(self, use: OpenUse, outputs: Sequence[Tensor]) -> None:
        if self._frames:
            self._frames[-1].uses.append(use)
            self._frames[-1].sources += [t for t in outputs if self._verify and t.requires_grad]

    def _is_live(self) -> bool:
        return self.active and not self._trace.paused

    def _accounts_in(self, layer: nn.Module) -> dict[int, ParameterAccount]:
        return {id(p): self._accounts[id(p)] for p in layer.parameters() if id(p) in self._accounts}

    def _pop(self, module: nn.Module) -> Frame | None:
        last = self._frames[-1] if self._frames else None
        if self._trace.paused and (last is None or not last.observed or last.module is not module):
            return None
        while self._frames:
            frame = self._frames.pop()
            if frame.module is module:
                return frame
        return None

    def _propose_batch_size(self, name: str, args: Any, kwargs: Any) -> list[Tensor]:
        axis = 1 if name in self._time_first else 0
        tensors = tensors_of((args, kwargs))
        if not self._frames:  # what the module is called with is data, even if it was made within the context
            for tensor in tensors:
                if tensor.dim() > axis and self.batch_size_so_far in (None, tensor.shape[axis]):
                    self._kinds.add_data(tensor)
        data = [tensor for tensor in tensors if self._kinds.is_data(tensor)]
        if self.batch_size_so_far is None:
            self.batch_size_so_far = next((t.shape[axis] for t in data if t.dim() > axis), None)
        return data

    def _quiet(self) -> Quiet:
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


def _versions(args: Any, kwargs: Any) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors_of((args, kwargs)))


def _is_plain(tree: Any) -> bool:
    """Whether a call's arguments are values, which running the call again cannot change."""
    return all(leaf is None or isinstance(leaf, PLAIN) for leaf in tree_leaves(tree))


def _is_checkpointed() -> bool:
    """Whether tensors are saved through hooks, as under non-reentrant checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def _in_first_forward() -> bool:
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def _is_random(layer: nn.Module) -> bool:
    dropout = getattr(layer, "dropout", 0.0)
    return not isinstance(dropout, int | float) or dropout > 0
