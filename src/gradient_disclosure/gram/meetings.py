"""Operations at which a value that all examples share meets the data, and each example's gradient of that value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from gradient_disclosure.errors import IncompleteGramError
from gradient_disclosure.gram.call import ForwardState
from gradient_disclosure.gram.kinds import TensorKinds
from gradient_disclosure.gram.per_example import Arguments, outputs_agree, per_example_vjp, split_examples
from gradient_disclosure.gram.shared import Operation, SharedValue, pull_back, rows_as_gradients, tensors_of
from gradient_disclosure.gram.terms import Term

ParameterTerms = Iterator[tuple[nn.Parameter, Term]]

ADDITIVE = frozenset({"add", "add_", "sub", "sub_", "where"})
"""Operations that broadcast their operands and keep none of them for the backward pass, by name."""
JOINS = frozenset({"cat", "concat", "concatenate"})
"""Operations whose operands must all have the examples on axis 0."""


@dataclass(frozen=True, eq=False)
class Meeting:
    """One operation on shared values and data.

    Attributes:
        operation: what to run in place of what the module called.
        values: the shared values.
        watched: tensors whose gradients are needed.
        resolve: gradients of ``watched`` → terms of the parameters behind the values.
        way: how, for the coverage report.
        watches_operands: ``watched`` are operands made for this operation alone, not its outputs.
        outputs: what the operation returned.
    """

    operation: Operation
    values: tuple[SharedValue, ...]
    watched: tuple[Tensor, ...]
    resolve: Callable[[Sequence[Tensor | None]], ParameterTerms]
    way: str
    watches_operands: bool = False
    outputs: tuple[Tensor, ...] = ()


def broadcast_meeting(
    operation: Operation,
    name: str,
    values: list[SharedValue],
    data: list[Tensor],
    kinds: TensorKinds,
    batch_size: int | None,
) -> Meeting | None:
    """Expand the shared operands of an elementwise operation (or the mask of an attention) over the examples.

    The gradient of the expanded operand is each example's own. Autograd adds the same numbers up in the same way, one
    node later. None where the operation is no such one, or axis 0 of its result is not seen to be the examples.
    """
    shapes = _operand_shapes(operation, name, values)
    if shapes is None or not batch_size:
        return None
    if any(value.tensor.dim() == 0 for value in values):  # expanded, it would count for the result's precision
        return None
    full = next(iter(shapes.values()))
    values = list({id(value.tensor): value for value in values}.values())
    aligned = _aligned(values, full, data, kinds, batch_size)
    if aligned is None:
        return None
    expanded = {id(value.tensor): value.tensor.expand(shapes[id(value.tensor)]) for value in values}

    def resolve(gradients: Sequence[Tensor | None]) -> ParameterTerms:
        for value, sizes, gradient in zip(values, aligned, gradients, strict=True):
            if gradient is not None:
                yield from pull_back(value, _of_each_example(gradient, value.tensor, sizes, batch_size))

    args, kwargs = tree_map_only(Tensor, lambda t: expanded.get(id(t), t), (operation.args, operation.kwargs))
    substitute = replace(operation, args=args, kwargs=kwargs)
    watched = tuple(expanded.values())
    return Meeting(substitute, tuple(values), watched, resolve, f"expanded before '{name}'", watches_operands=True)


def _operand_shapes(operation: Operation, name: str, values: list[SharedValue]) -> dict[int, tuple[int, ...]] | None:
    """What to expand each shared operand to, by ``id``; None where the operation is not known to broadcast."""
    tensors = tensors_of((operation.args, operation.kwargs))
    if name == "scaled_dot_product_attention":
        given = dict(zip(("query", "key", "value", "attn_mask"), operation.args, strict=False)) | operation.kwargs
        if [id(value.tensor) for value in values] != [id(given.get("attn_mask"))]:
            return None
        full = (*given["query"].shape[:-1], given["key"].shape[-2])
    elif name in ADDITIVE:
        full = tuple(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    elif name in JOINS and len({tensor.shape[0] for tensor in tensors if tensor.dim()}) == 1:
        axis = operation.kwargs.get("dim", operation.args[1] if len(operation.args) > 1 else 0)
        return {id(v.tensor): tuple(v.tensor.shape) for v in values} if axis % tensors[0].dim() else None
    else:
        return None
    return {id(value.tensor): full for value in values} if full else None


def _aligned(
    values: list[SharedValue], full: tuple[int, ...], data: list[Tensor], kinds: TensorKinds, batch_size: int
) -> list[tuple[int, ...]] | None:
    """Shapes of the shared operands with as many axes as the result; None where its axis 0 is not the examples."""
    rows = {kinds.rows_per_example(t, batch_size) for t in data if t.dim() == len(full) and t.shape[0] == full[0]}
    rows.discard(None)
    aligned = [(1,) * (len(full) - value.tensor.dim()) + tuple(value.tensor.shape) for value in values]
    if len(rows) != 1 or any(sizes[0] != 1 and rows != {1} for sizes in aligned):
        return None
    return aligned


def product_meeting(
    operation: Operation,
    name: str,
    values: list[SharedValue],
    data: list[Tensor],
    output: Tensor,
    kinds: TensorKinds,
    batch_size: int | None,
) -> Meeting | None:
    """``shared * data``, as in gains of normalization layers: the gradient of the product times the data."""
    if name != "mul" or len(values) != 1 or len(data) != 1 or not batch_size or not output.dim():
        return None
    value, other = values[0], data[0].detach()
    aligned = _aligned(values, tuple(output.shape), data, kinds, batch_size)
    if aligned is None:
        return None
    version = other._version

    def resolve(gradients: Sequence[Tensor | None]) -> ParameterTerms:
        gradient = gradients[0]
        if gradient is None:
            return
        if other._version != version:
            raise IncompleteGramError("a factor of a parameter was changed in place before the backward pass")
        precision = torch.promote_types(value.tensor.dtype, gradient.dtype)
        product = gradient.to(precision) * other.to(precision)
        yield from pull_back(value, _of_each_example(product, value.tensor, aligned[0], batch_size))

    return Meeting(operation, (value,), (output,), resolve, "multiplied by data")


def _of_each_example(gradient: Tensor, value: Tensor, aligned: tuple[int, ...], batch_size: int) -> Tensor:
    """(k·B, ...) gradient of an expanded value → (B, *value.shape)."""
    examples = split_examples(gradient, 0, batch_size).sum(dim=1)
    rows = examples.sum_to_size(batch_size, *aligned[1:])
    if aligned[0] != 1:
        rows = rows_as_gradients(rows)
    return rows.reshape(batch_size, *value.shape)


def input_meeting(value: SharedValue, axis: int, batch_size: int | None) -> Meeting | str:
    """A shared value that holds one row for each example and goes into a layer together with the data.

    The gradient of a view of it made for that layer is, row by row, each example's own.
    """
    tensor = value.tensor
    if not batch_size or tensor.dim() <= axis or tensor.shape[axis] != batch_size:
        return f"it has no axis of {batch_size} examples there"
    view = tensor.view_as(tensor)

    def resolve(gradients: Sequence[Tensor | None]) -> ParameterTerms:
        if gradients[0] is not None:
            rows = rows_as_gradients(gradients[0].movedim(axis, 0))
            yield from pull_back(value, rows.movedim(1, axis + 1))

    operation = Operation(torch.Tensor.view_as, (tensor, tensor), {})
    return Meeting(operation, (value,), (view,), resolve, "input of a layer", watches_operands=True)


def generic_meeting(
    operation: Operation,
    values: list[SharedValue],
    data: list[Tensor],
    outputs: list[Tensor],
    kinds: TensorKinds,
    batch_size: int | None,
) -> Meeting | str:
    """Any operation that gives the same when it is run one example at a time; else the reason why it does not."""
    name = operation.function.__name__
    if not batch_size or any(kinds.rows_per_example(tensor, batch_size) is None for tensor in outputs):
        return f"axis 0 of what '{name}' returns is not known to be the examples"
    if name.endswith("_") and not name.endswith("__"):
        return f"'{name}' changes its data in place"
    values = list({id(value.tensor): value for value in values}.values())
    followed = {id(tensor) for tensor in data if kinds.rows_per_example(tensor, batch_size) is not None}
    shared = [value.tensor.detach() for value in values]
    arguments = Arguments.of(
        operation.args, operation.kwargs, lambda tensor: 0 if id(tensor) in followed else None, batch_size
    )
    leaves = tree_leaves((operation.args, operation.kwargs))
    places = [(at, i) for i, v in enumerate(values) for at, leaf in enumerate(leaves) if leaf is v.tensor]

    def run(replaced: Sequence[Tensor], examples: Sequence[Tensor]) -> object:
        args, kwargs = arguments.of_one(examples, {at: replaced[i] for at, i in places})
        return operation.function(*args, **kwargs)

    examples = arguments.examples()
    try:
        split = [split_examples(tensor.detach(), 0, batch_size) for tensor in outputs]
        same = outputs_agree(run, shared, examples, split)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        return f"'{name}' cannot be run again one example at a time ({str(error).splitlines()[0]})"
    if not same:
        return f"'{name}' does not give the same when it is run one example at a time"
    state, device = ForwardState.now(outputs[0].device, random=False), outputs[0].device

    def resolve(gradients: Sequence[Tensor | None]) -> ParameterTerms:
        arrived = [None if g is None else split_examples(g, 0, batch_size) for g in gradients]
        with state.restored(device):
            found = per_example_vjp(run, shared, examples, arrived)
        for value, gradient in zip(values, found, strict=True):
            yield from pull_back(value, gradient)

    return Meeting(operation, tuple(values), tuple(outputs), resolve, f"'{name}' again under vmap")
