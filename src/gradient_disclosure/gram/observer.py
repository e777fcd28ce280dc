"""Watches one forward pass of a module: which layers run, on what, and where parameters meet the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.gram.account import ParameterAccount
from gradient_disclosure.gram.distributed.unsharded import UnshardedParameters
from gradient_disclosure.gram.layer_observer import LayerObserver
from gradient_disclosure.gram.module_observer import ModuleObserver
from gradient_disclosure.gram.pass_state import PassState
from gradient_disclosure.gram.registry import call_terms_of, refuse_batch_coupling
from gradient_disclosure.gram.trace import ParameterTrace


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
        self._state = PassState(self._accounts, _constants_of(module), time_first, verify, micro_batches)
        self._sharding = UnshardedParameters(module, self._accounts, self._state.kinds)
        self._layers = LayerObserver(self._state, reuse=reuse)
        self._modules = ModuleObserver(self._state, self._has_hooks)
        self._handles: list[Any] = []

    def batch_sizes(self) -> list[int]:
        """Number of examples of each micro-batch so far; empty if nothing has run."""
        return self._state.batch_sizes()

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
                enter, leave = self._layers.enter(name), self._layers.leave(terms)
            else:
                enter, leave = self._modules.enter(name), self._modules.leave
            enter, leave = self._only_for(child, enter, None), self._only_for(child, leave, 2)
            self._handles += [
                child.register_forward_pre_hook(enter, with_kwargs=True),
                child.register_forward_hook(leave, with_kwargs=True, always_call=True, prepend=True),
            ]
        self._refuse_nesting()
        self._state.active = True
        self._state.trace.__enter__()

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
            if module is owner and self._state.active:
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
        if self._state.active:
            self._state.trace.__exit__(None, None, None)
        self._state.active = False
        self._sharding.detach()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for frame in self._state.frames:
            frame.release()
        self._state.frames = []


def _constants_of(module: nn.Module) -> Iterator[Tensor]:
    """Tensors of a module that no example has a part in: buffers, parameters not to follow, plain attributes."""
    for child in module.modules():
        for held in (child._buffers, child._parameters, vars(child)):
            yield from (value for value in held.values() if isinstance(value, Tensor))
