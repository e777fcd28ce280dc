"""What each tensor of a running forward pass is: shared by all examples, a constant, or data."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterable

from torch import Tensor, nn

from gradient_disclosure.gram.shared import Operation, SharedValue, tensors_of

ROW_MAJOR = frozenset({"reshape", "view", "flatten", "unflatten"})
"""Merging or splitting leading axes keeps the examples' rows together, in order."""
MOVES_ROWS = frozenset(
    {
        "transpose",
        "permute",
        "movedim",
        "moveaxis",
        "swapaxes",
        "swapdims",
        "t",
        "__get__",
        "roll",
        "flip",
        "__getitem__",
    }
    | {"index_select", "gather", "take_along_dim", "sort", "argsort", "topk", "scatter", "index_add", "cumsum", "cat"}
    | {"stack", "masked_select", "rot90", "unbind", "concat", "concatenate"}
)
"""Operations after which rows may be others, or of others, than before."""
OF_SHAPE_ONLY = frozenset(
    {"new_ones", "new_zeros", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like"}
)
"""Operations that take no values from the data they are given."""
OF_FIRST_ONLY = frozenset({"type_as", "to", "expand_as", "view_as", "reshape_as"})


def moves_rows(name: str, args: tuple[object, ...], kwargs: dict[str, object], ndim: int) -> bool:
    """Whether rows along axis 0 may be others after an operation than before.

    Example:
        >>> moves_rows("transpose", (None, 1, -1), {}, 3), moves_rows("transpose", (None, 0, 1), {}, 3)
        (False, True)
    """
    if name not in MOVES_ROWS or ndim == 0:
        return False
    given = [value for value in (*args[1:], *kwargs.values()) if isinstance(value, int | tuple | list)]
    axes = [axis for value in given for axis in (value if isinstance(value, tuple | list) else (value,))]
    numbers = [axis % ndim for axis in axes if isinstance(axis, int)]
    if not numbers or len(numbers) < len(axes):
        return True
    if name in ("transpose", "swapaxes", "swapdims"):
        return 0 in numbers
    return name != "permute" or numbers[0] != 0


def changes_in_place(name: str, kwargs: dict[str, object]) -> bool:
    """Whether a torch function changes its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True


class TensorKinds:
    """Sorts tensors. A tensor that nothing is known about came from outside the pass: it is data.

    - shared: a parameter, or computed from parameters and constants; it requires a gradient.
    - constant: a buffer, or computed in the pass from no data (positions, masks of a given length).
    - data: everything else. Its axis 0 is taken as the examples if it has B entries; if it has k·B, only where it was
      seen to come from B by a reshape (then each example has k consecutive rows).

    Args:
        parameters: the parameters to follow.
        constants: tensors of the module that are no data; those that are followed may be among them.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], constants: Iterable[Tensor]) -> None:
        self._roots = {id(p): SharedValue(p, parameters={id(p): p}) for p in parameters}
        self._count = 0
        self._shared = dict(self._roots)
        self._constants: dict[int, weakref.ref[Tensor]] = {}
        self._mixed: dict[int, weakref.ref[Tensor]] = {}
        self._merged: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        for constant in constants:
            if id(constant) not in self._roots:
                self.add_constant(constant, trainable=isinstance(constant, nn.Parameter))

    def add_parameter(self, parameter: nn.Parameter) -> None:
        """Follow one more parameter."""
        self._roots[id(parameter)] = SharedValue(parameter, parameters={id(parameter): parameter})
        self._shared[id(parameter)] = self._roots[id(parameter)]

    def follows(self, parameters: Container[int]) -> bool:
        """Whether it follows any of these parameters (by ``id``)."""
        return any(key in parameters for key in self._roots)

    def is_constant(self, tensor: Tensor) -> bool:
        """Whether no example has a part in a tensor, as far as is known."""
        return not self.is_data(tensor) and self.shared(tensor) is None

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

    def add_constant(self, tensor: Tensor, *, trainable: bool = False) -> None:
        """Remember a tensor that no example has a part in; ``trainable``: an excluded parameter."""
        if trainable or not tensor.requires_grad:
            self._constants[id(tensor)] = weakref.ref(tensor)

    def add_mixed(self, tensor: Tensor) -> None:
        """Remember a tensor that was computed from several examples: it is never the same for all."""
        self._mixed[id(tensor)] = weakref.ref(tensor)

    def is_mixed(self, tensor: Tensor) -> bool:
        """Whether a tensor was seen to be computed from several examples."""
        known = self._mixed.get(id(tensor))
        return known is not None and known() is tensor

    def add_data(self, tensor: Tensor) -> None:
        """Take a tensor for data although it was made within the pass."""
        self._constants.pop(id(tensor), None)

    def add_shared(self, operation: Operation, inputs: list[SharedValue], output: object) -> None:
        """Remember the outputs of an operation on shared values and constants."""
        parameters = {key: parameter for value in inputs for key, parameter in value.parameters.items()}
        for position, tensor in enumerate(tensors_of(output)):
            if tensor.requires_grad:
                self._count += 1
                self._shared[id(tensor)] = SharedValue(
                    tensor, parameters, operation, position, tuple(inputs), self._count
                )
            else:
                self.add_constant(tensor)

    def follow_rows(self, name: str, inputs: list[Tensor], output: object, batch_size: int | None) -> None:
        """Notice where an operation merges axes behind the batch into it, or keeps rows that are merged."""
        if batch_size is None or batch_size == 0:
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
