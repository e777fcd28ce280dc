"""One run of a layer: what went in, and what gradient came back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ForwardState:
    """What a forward pass depends on besides its arguments: the random state, where needed, and autocast.

    Attributes:
        device_type: "cpu" or "cuda", where the layer ran.
        autocast: precision of the autocast that was on, None if none was.
        random_states: state of the generators before the run (CPU, then the device's), empty where nothing is random.
    """

    device_type: str
    autocast: torch.dtype | None
    random_states: tuple[Tensor, ...] = ()

    @classmethod
    def now(cls, device: torch.device, *, random: bool) -> ForwardState:
        """The state at this moment, with that of the generators if ``random``."""
        kind = device.type
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        states: tuple[Tensor, ...] = ()
        if random:
            states = (torch.get_rng_state(),)
            if kind == "cuda":
                states += (torch.cuda.get_rng_state(device),)
        return cls(kind, autocast, states)

    @contextmanager
    def restored(self, device: torch.device) -> Iterator[None]:
        """Run something as it ran then; afterwards the generators are as if it had not been run."""
        with ExitStack() as stack:
            if self.random_states:
                devices = [device] if self.device_type == "cuda" else []
                stack.enter_context(torch.random.fork_rng(devices=devices))
                torch.set_rng_state(self.random_states[0])
                if len(self.random_states) > 1:
                    torch.cuda.set_rng_state(self.random_states[1], device)
            stack.enter_context(
                torch.autocast(
                    self.device_type, dtype=self.autocast, enabled=self.autocast is not None, cache_enabled=False
                )
            )
            yield


@dataclass(frozen=True)
class LayerCall:
    """One run of a layer.

    Attributes:
        module: the layer.
        args: its positional arguments, tensors detached.
        kwargs: its keyword arguments, tensors detached.
        gradients: gradients of its output tensors in the order of ``tree_leaves(output)`` (tensors only); None where
            no gradient arrived.
        state: what the run depended on besides its arguments.
        batch_size: number of examples B.
        time_first: the data are (time, batch, ...).
    """

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    gradients: tuple[Tensor | None, ...]
    state: ForwardState
    batch_size: int
    time_first: bool = False
