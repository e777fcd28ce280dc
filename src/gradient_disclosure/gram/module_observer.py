"""All modules that are not known layers: what runs inside of them, and what must be taken from them as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.fallback import mixing_refusal, module_run, refusal
from gradient_disclosure.gram.frame import Frame, in_first_forward, is_checkpointed, versions
from gradient_disclosure.gram.mixing import mixes_examples
from gradient_disclosure.gram.outputs import told_apart
from gradient_disclosure.gram.pass_state import PassState
from gradient_disclosure.gram.rerun import MIXES
from gradient_disclosure.gram.shared import tensors_of
from gradient_disclosure.gram.terms import Term
from gradient_disclosure.gram.uses import OpenUse


class ModuleObserver:
    """Makes the hooks of modules that are looked into.

    Args:
        state: of the pass.
        has_hooks: whether somebody else counts backward passes (Opacus does): then none may be run but the real one.
    """

    def __init__(self, state: PassState, has_hooks: Callable[[], bool]) -> None:
        self._state = state
        self._has_hooks = has_hooks

    def enter(self, name: str) -> Callable[..., Any]:
        """Hook for before a module of this name runs."""

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._state.trace.paused:
                return
            self._state.begin_if_new()
            if not self._state.frames and not name and self._state.micro_batches > 1 and self._state.layout.settled:
                raise IncompleteGramError(
                    "the module ran twice before a backward pass: with micro_batches each forward pass is followed by "
                    "its backward pass."
                )
            self._state.layout.propose(name, args, kwargs, outermost=not self._state.frames)
            frame = Frame(name, module, versions=versions(args, kwargs), checkpointed=is_checkpointed())
            if not in_first_forward() and torch.is_grad_enabled() and not self._state.trace.is_on():
                self._state.trace.__enter__()
                frame.switched_on = True
            self._state.frames.append(frame)

        return enter

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """Hook for after a module has run."""
        frame = self._state.pop(module)
        if frame is None:
            return output
        if frame.switched_on:
            self._state.trace.__exit__(None, None, None)
        outer = self._state.frames[-1] if self._state.frames else None
        if outer is not None:
            outer.uses += frame.uses
            outer.checkpointed |= frame.checkpointed
        if frame.lost:
            output = told_apart(output)
            reason = self._run_again(frame, args, kwargs, output, outer)
            if reason is not None:
                self._pass_on(frame, reason, outer)
        if (
            outer is None
            and self._state.verify
            and not frame.checkpointed
            and in_first_forward()
            and not self._has_hooks()
        ):
            self._refuse_mixing(frame, output)
        return output

    def _run_again(self, frame: Frame, args: Any, kwargs: Any, output: Any, outer: Frame | None) -> str | None:
        """Take the lost parameters from the whole module; the reason why not, if that cannot be done."""
        wanted = [(name, p) for name, p in frame.module.named_parameters() if id(p) in frame.lost]
        if len(wanted) < len(frame.lost):
            return "some of the parameters are not its own"
        run = module_run(frame, args, kwargs, output, self._state.kinds, self._state.layout)
        if isinstance(run, str):
            return run
        with self._state.quiet():
            problem = run.problem()
        if problem is not None:
            return problem
        for use in frame.uses:
            use.cancel(set(frame.lost))
        resolve = run.resolver(wanted)

        def resolved(gradients: Sequence[Tensor | None]) -> Iterator[tuple[int, Term]]:
            arrived = dict(zip(watched, gradients, strict=True))
            spread = [arrived.get(at) for at in range(len(outputs))]
            with self._state.quiet():
                for parameter, term in resolve(spread):
                    yield id(parameter), term

        outputs = tensors_of(output)
        known = {id(tensor): at for at, tensor in reversed(list(enumerate(outputs))) if tensor.requires_grad}
        watched = sorted(known.values())  # a tensor that is returned twice has one gradient
        self._state.layout.settled = True
        accounts = {key: self._state.accounts[key] for key in frame.lost}
        use = OpenUse(accounts, f"{type(frame.module).__name__} again under vmap", resolved, self._state.is_live)
        use.watch([outputs[at] for at in watched])
        if outer is not None:
            outer.uses.append(use)
        return None

    def _pass_on(self, frame: Frame, reason: str, outer: Frame | None) -> None:
        lost = {key: f"{known}; {frame.described}: {reason}" for key, known in frame.lost.items()}
        if outer is None or reason == MIXES:
            raise refusal(self._state.accounts, lost, mixes=reason == MIXES)
        outer.lost |= lost

    def _refuse_mixing(self, frame: Frame, output: Any) -> None:
        """No example may act on the output of another, from the parameters it meets first to the end."""
        with self._state.quiet():
            mixes = mixes_examples(tensors_of(output), self._state.sources, self._state.layout.size)
        self._state.sources = []
        if mixes:
            raise mixing_refusal(frame)
