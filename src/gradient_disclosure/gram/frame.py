"""A module that is running, and what is known of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gradient_disclosure.gram.call import ForwardState
from gradient_disclosure.gram.shared import tensors_of
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
        checkpointed: a part of it runs under gradient checkpointing.
        switched_on: the trace was switched on for this module (a checkpoint that is run again).
        held: parameters that need no gradient while it runs, because they get it otherwise.
    """

    name: str
    module: nn.Module
    observed: bool = False
    state: ForwardState | None = None
    versions: tuple[int, ...] = ()
    uses: list[OpenUse] = field(default_factory=list)
    lost: dict[int, str] = field(default_factory=dict)
    checkpointed: bool = False
    switched_on: bool = False
    held: list[nn.Parameter] = field(default_factory=list)

    def hold(self, parameters: Iterable[nn.Parameter]) -> None:
        """While the module runs, autograd does not record how its output depends on these parameters."""
        with torch._C.DisableTorchFunction():
            for parameter in parameters:
                if parameter.requires_grad:
                    self.held.append(parameter)
                    parameter.requires_grad_(False)

    def release(self) -> list[nn.Parameter]:
        """The module has run; what was held needs its gradient again."""
        held, self.held = self.held, []
        with torch._C.DisableTorchFunction():
            for parameter in held:
                parameter.requires_grad_(True)
        return held

    @property
    def described(self) -> str:
        """Name and type, for messages."""
        return f"'{self.name}' ({type(self.module).__name__})"


def versions(args: Any, kwargs: Any) -> tuple[int, ...]:
    """How often each argument tensor has been changed in place so far."""
    return tuple(tensor._version for tensor in tensors_of((args, kwargs)))


def is_plain(tree: Any) -> bool:
    """Whether a call's arguments are values, which running the call again cannot change."""
    return all(leaf is None or isinstance(leaf, PLAIN) for leaf in tree_leaves(tree))


def is_checkpointed() -> bool:
    """Whether tensors are saved through hooks, as under non-reentrant checkpointing."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def in_first_forward() -> bool:
    """Whether a forward pass is recorded, and not one that a checkpoint runs again during the backward pass."""
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def is_random(layer: nn.Module) -> bool:
    """Whether a layer may draw random numbers of its own."""
    dropout = getattr(layer, "dropout", 0.0)
    return layer.training and (not isinstance(dropout, int | float) or dropout > 0)
