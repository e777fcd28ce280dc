"""Values that are the same for every example: parameters, and what is computed from parameters alone.

Where such a value meets the data its gradient can be had per example, before autograd adds the examples up. From there
it is carried back to the parameters, one recorded operation after the other, for all examples at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from gradient_disclosure.gram.terms import Dense, Lookup, Term

NO_CONTAINER = (bool, int, float, str, torch.dtype, torch.device, slice)


@dataclass(frozen=True, eq=False)
class Operation:
    """One call of a torch function.

    Attributes:
        function: what was called.
        args: positional arguments, with the tensors it was called with.
        kwargs: keyword arguments.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, replaced: dict[int, Tensor]) -> Any:
        """Call it again, with other tensors in place of some (by ``id``), all others detached."""

        def value(tensor: Tensor) -> Tensor:
            found = replaced.get(id(tensor))
            return tensor.detach() if found is None else found

        args, kwargs = tree_map_only(Tensor, value, (self.args, self.kwargs))
        return self.function(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class SharedValue:
    """A parameter, or a tensor computed from parameters and constants.

    Attributes:
        tensor: its value in the running forward pass.
        parameters: the parameters it depends on, by ``id``.
        operation: what computed it; None for a parameter.
        position: which of the operation's output tensors it is.
        inputs: the shared values it was computed from.
        age: it was computed after all values of a lower age.
    """

    tensor: Tensor
    parameters: dict[int, nn.Parameter]
    operation: Operation | None = None
    position: int = 0
    inputs: tuple[SharedValue, ...] = ()
    age: int = 0


def pull_back(value: SharedValue, gradients: Tensor) -> Iterator[tuple[nn.Parameter, Term]]:
    """Per-example gradients of the parameters behind a shared value.

    Args:
        value: the shared value.
        gradients: (B, *value.shape), each example's gradient of it.

    Yields:
        (parameter, term); a parameter may come several times, its terms add.
    """
    waiting = {id(value): (value, gradients)}
    while waiting:  # youngest first: all that a value gets is there before it is passed on
        value, gradients = waiting.pop(max(waiting, key=lambda key: waiting[key][0].age))
        if value.operation is None:
            parameter = next(iter(value.parameters.values()))
            yield parameter, Dense(gradients.reshape(gradients.shape[0], -1), tuple(parameter.shape))
            continue
        looked_up = _lookup(value, gradients)
        if looked_up is not None:
            yield looked_up
            continue
        inputs = list({id(one): one for one in value.inputs}.values())
        for one, gradient in zip(inputs, _operation_vjp(value, inputs, gradients), strict=True):
            known = waiting.get(id(one))
            waiting[id(one)] = (one, gradient if known is None else known[1] + gradient)


def rows_as_gradients(rows: Tensor) -> Tensor:
    """(B, ...) → (B, B, ...): example i's gradient of a value with one row an example is its row i alone."""
    batch = rows.shape[0]
    spread = rows.new_zeros(batch, *rows.shape)
    index = torch.arange(batch, device=rows.device)
    spread[index, index] = rows
    return spread


def _operation_vjp(value: SharedValue, inputs: list[SharedValue], gradients: Tensor) -> Sequence[Tensor]:
    operation = value.operation
    assert operation is not None
    ids = [id(one.tensor) for one in inputs]

    def forward(*values: Tensor) -> Tensor:
        output = operation.run(dict(zip(ids, values, strict=True)))
        return tensors_of(output)[value.position]

    vjp = torch.func.vjp(forward, *(one.tensor.detach() for one in inputs))[1]
    found: Sequence[Tensor] = torch.func.vmap(vjp)(gradients.to(value.tensor.dtype))
    return found


def _lookup(value: SharedValue, gradients: Tensor) -> tuple[nn.Parameter, Term] | None:
    """The table of an embedding called on ids without a batch axis (positions), without spreading over the table."""
    operation = value.operation
    assert operation is not None
    if operation.function is not torch.nn.functional.embedding or len(value.inputs) != 1:
        return None
    table = next(iter(value.inputs[0].parameters.values())) if value.inputs[0].operation is None else None
    names = ("input", "weight", "padding_idx")
    given = dict(zip(names, operation.args, strict=False)) | operation.kwargs
    if table is None or given["weight"] is not table:
        return None
    ids = given["input"].flatten()
    padding = given.get("padding_idx")
    if padding is not None:
        ids = ids.masked_fill(ids == (padding % table.shape[0]), -1)
    batch = gradients.shape[0]
    return table, Lookup(ids.expand(batch, -1), gradients.reshape(batch, ids.numel(), -1), tuple(table.shape))


def tensors_of(tree: Any) -> list[Tensor]:
    """The tensors in a nested structure, in the order of ``tree_leaves``."""
    if isinstance(tree, Tensor):
        return [tree]
    if tree is None or isinstance(tree, NO_CONTAINER):
        return []
    if type(tree) in (tuple, list):  # by far the most frequent; pytree is slow on them
        return [tensor for part in tree for tensor in tensors_of(part)]
    if type(tree) is dict:
        return [tensor for part in tree.values() for tensor in tensors_of(part)] if tree else []
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
