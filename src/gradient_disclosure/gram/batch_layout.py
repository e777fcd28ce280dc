"""How many examples a pass has, and where tensors hold them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.kinds import TensorKinds
from gradient_disclosure.gram.shared import tensors_of


class BatchLayout:
    """The batch size of a pass, proposed by what the module is called with and settled by the first use of a parameter.

    Args:
        kinds: knows what is data.
        time_first: names of modules whose data are (time, batch, ...).
    """

    def __init__(self, kinds: TensorKinds, time_first: set[str]) -> None:
        self._kinds = kinds
        self._time_first = time_first
        self.size: int | None = None
        self.settled = False

    def restart(self) -> None:
        """Begin another micro-batch."""
        self.size, self.settled = None, False

    def axis(self, name: str) -> int:
        """Axis of the examples in what a module is called with."""
        return 1 if name in self._time_first else 0

    def propose(self, name: str, args: Any, kwargs: Any, *, outermost: bool) -> list[Tensor]:
        """Take the size from a module's arguments if nothing is known yet; its data arguments."""
        axis = self.axis(name)
        tensors = tensors_of((args, kwargs))
        if outermost and not self.settled:
            self.size = None
        if outermost:  # what the module is called with is data, even if it was made within the context
            for tensor in tensors:
                if tensor.dim() > axis and self.size in (None, tensor.shape[axis]):
                    self._kinds.add_data(tensor)
        data = [tensor for tensor in tensors if self._kinds.is_data(tensor)]
        if self.size is None or (axis == 1 and not self.settled):  # torch's own time-first layers are certain
            sizes = [tensor.shape[axis] for tensor in data if tensor.dim() > axis]
            self.size = next((size for size in sizes if size != 1), sizes[0] if sizes else self.size)
        return data

    def take_for_all(self, name: str, tensor: Tensor) -> bool:
        """Whether a layer's input has one row for all examples (positions given by the user): then it is no data."""
        axis = self.axis(name)
        held = tensor.dim() > axis and tensor.shape[axis] == 1 and self.size not in (None, 1)
        if held and not tensor.requires_grad and not self._kinds.is_mixed(tensor):
            self._kinds.add_constant(tensor)
            return True
        return False

    def rows(self, name: str, layer: nn.Module, args: Any, kwargs: Any, outputs: Sequence[Tensor]) -> int:
        """Consecutive rows of one example in a layer's input.

        Raises:
            IncompleteGramError: they cannot be told apart by example.
        """
        axis = self.axis(name)
        data = [t for t in tensors_of((args, kwargs)) if self._kinds.is_data(t) and t.dim() > axis]
        bags = isinstance(layer, nn.EmbeddingBag)  # its bags are the examples; the ids may be one flat list
        first = outputs[0] if bags or not data else data[0]
        size = first.shape[axis]
        rows = 1 if size == self.size else None
        if rows is None and axis == 0:
            rows = self._kinds.rows_per_example(first, self.size)
        if rows is None and not self.settled and (axis == 1 or bags or self.size is None):
            self.size, rows = size, 1
        if rows is None:
            raise IncompleteGramError(
                f"'{name}' received {size} rows where the batch has {self.size}: its first axis is not the batch (or "
                "another batch ran in the same context), so its rows cannot be told apart by example. Keep the batch "
                "as first axis through this layer, or name the layers that get time first with "
                f"time_first=['{name}']."
            )
        self.settled = True
        return rows
