"""What each tensor of a running forward pass is: shared by all examples, a constant, or data."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from torch import Tensor, nn

from gradient_disclosure.gram.shared import Operation, SharedValue, tensors_of

ROW_MAJOR = frozenset({"reshape", "view", "flatten", "unflatten"})
"""Merging or splitting leading axes keeps the examples' rows together, in order."""
MOVES_AXES = frozenset({"transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "__get__", "roll"})


class TensorKinds:
    """Sorts tensors. A tensor that nothing is known about came from outside the pass: it is data.

    - shared: a parameter, or computed from parameters and constants; it requires a gradient.
    - constant: a buffer, or computed in the pass from no data (positions, masks of a given length).
    - data: everything else. Its axis 0 is taken as the examples if it has B entries; if it has k·B, only where it was
      seen to come from B by a reshape (then each example has k consecutive rows).

    Args:
        parameters: the parameters to follow.
        buffers: tensors of the module that are no data.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], buffers: Iterable[Tensor]) -> None:
        self._roots = {id(p): SharedValue(p, parameter=p) for p in parameters}
        self._shared = dict(self._roots)
        self._constants: dict[int, weakref.ref[Tensor]] = {}
        self._merged: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        for buffer in buffers:
            self.add_constant(buffer)

    def forget_values(self) -> None:
        """Forget what was computed, e.g. between two micro-batches."""
        self._shared = dict(self._roots)
        self._merged.clear()

    def shared(self, tensor: Tensor) -> SharedValue | None:
        """The shared value behind a tensor, None if it is not shared."""
        return self._shared.get(id(tensor))

    def is_data(self, tensor: Tensor) -> bool:
        """Whether a tensor may differ from example to example."""
        if id(tensor) in self._shared:
            return False
        known = self._constants.get(id(tensor))
        return known is None or known() is not tensor

    def rows_per_example(self, tensor: Tensor, batch_size: int | None) -> int | None:
        """K where axis 0 holds k consecutive rows of each example, None where it is not known to."""
        if tensor.dim() == 0 or batch_size is None:
            return None
        if tensor.shape[0] == batch_size:
            return 1
        known = self._merged.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def add_constant(self, tensor: Tensor) -> None:
        """Remember a tensor that no example has a part in."""
        if not tensor.requires_grad:
            self._constants[id(tensor)] = weakref.ref(tensor)

    def add_data(self, tensor: Tensor) -> None:
        """Take a tensor for data although it was made within the pass."""
        self._constants.pop(id(tensor), None)

    def add_shared(self, operation: Operation, inputs: list[SharedValue], output: object) -> None:
        """Remember the outputs of an operation on shared values and constants."""
        for position, tensor in enumerate(tensors_of(output)):
            if tensor.requires_grad:
                value = SharedValue(tensor, operation=operation, position=position, inputs=tuple(inputs))
                self._shared[id(tensor)] = value
            else:
                self.add_constant(tensor)

    def follow_rows(self, name: str, inputs: list[Tensor], output: object, batch_size: int | None) -> None:
        """Notice where an operation merges axes behind the batch into it, or keeps rows that are merged."""
        if batch_size is None or batch_size == 0 or name in MOVES_AXES:
            return
        merged = [t for t in inputs if self.rows_per_example(t, batch_size) not in (None, 1)]
        reshaped = name in ROW_MAJOR and self.rows_per_example(inputs[0], batch_size) is not None
        if not merged and not reshaped:
            return
        for tensor in tensors_of(output):
            rows = tensor.shape[0] if tensor.dim() else 0
            kept = any(rows == t.shape[0] for t in merged)
            if rows != batch_size and ((reshaped and rows and rows % batch_size == 0) or kept):
                self._merged[id(tensor)] = (weakref.ref(tensor), rows // batch_size)
