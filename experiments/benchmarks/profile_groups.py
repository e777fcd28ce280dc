"""Where a step's time goes: operations recorded by torch's profiler, sorted into a few groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

PER_EXAMPLE = "batched products (per-example gradients, unfused attention)"
GRAM = "Gram products"
CONVERSION = "conversion to float64"
SUM = "sums"
LAYERS = "products and convolutions of the layers"
ATTENTION = "fused attention"
OPTIMIZER = "optimizer"
OTHER = "other operations"
OUTSIDE = "outside of operations (Python, hooks, autograd's engine)"
GROUPS = (PER_EXAMPLE, SUM, GRAM, CONVERSION, LAYERS, ATTENTION, OPTIMIZER, OTHER, OUTSIDE)

PRODUCTS = {"aten::mm", "aten::addmm", "aten::addmm_", "aten::bmm", "aten::baddbmm", "aten::baddbmm_", "aten::matmul"}
BATCHED = {"aten::bmm", "aten::baddbmm", "aten::baddbmm_"}
CONVOLUTIONS = ("aten::mkldnn_convolution", "aten::convolution", "aten::_convolution")


@dataclass(frozen=True)
class Operation:
    """One recorded operation.

    Attributes:
        name: e.g. "aten::bmm".
        start: nanoseconds.
        duration: nanoseconds.
        shapes: of its arguments, empty for one that is no tensor.
        dtypes: of its arguments.
        thread: where it ran.
    """

    name: str
    start: int
    duration: int
    shapes: Sequence[Sequence[int]] = ()
    dtypes: Sequence[str] = ()
    thread: int = 0


def group_of(operation: Operation, batch: int) -> str:
    """The group of an operation outside of the optimizer's step.

    Attention with dropout is not fused on a CPU; its products are batched ones in the plain step and in the audited one
    alike. A batched product that gives many B×B matrices is one of Gram matrices; so is every product in float64.

    Example:
        >>> group_of(Operation("aten::bmm", 0, 1, [[8, 5, 3], [8, 3, 5]], ["float", "float"]), batch=5)
        'Gram products'
    """
    name = operation.name
    if name.startswith("autograd::") or not name.startswith("aten::"):
        return OUTSIDE
    if name == "aten::copy_" and operation.dtypes[:1] == ["double"] and operation.dtypes[1:2] != ["double"]:
        return CONVERSION
    if name in PRODUCTS:
        factors = [list(shape) for shape in operation.shapes if len(shape) >= 2][-2:]
        if "double" in operation.dtypes:
            return GRAM
        if name in BATCHED and len(factors) == 2 and factors[0][1] == factors[1][2] == batch:
            return GRAM
        return PER_EXAMPLE if name in BATCHED else LAYERS
    if name == "aten::sum":
        return SUM
    if name.startswith(CONVOLUTIONS):
        return LAYERS
    return ATTENTION if "scaled_dot_product" in name else OTHER


def grouped(operations: Iterable[Operation], batch: int, wall: float) -> dict[str, float]:
    """Seconds of each group; the groups add up to the wall-clock time.

    An operation's own time is its duration less that of the operations inside of it.

    Args:
        operations: of one step.
        batch: B.
        wall: seconds of the whole step.
    """
    seconds: dict[str, float] = defaultdict(float)
    by_thread: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_thread[operation.thread].append(operation)
    for own in by_thread.values():
        _add_self_times(sorted(own, key=lambda o: (o.start, -o.duration)), batch, seconds)
    inside = sum(seconds[group] for group in GROUPS if group != OUTSIDE)
    seconds[OUTSIDE] = wall - inside
    return {group: seconds[group] for group in GROUPS}


def _add_self_times(operations: Sequence[Operation], batch: int, seconds: dict[str, float]) -> None:
    open_ones: list[tuple[int, str]] = []  # end and group of the operations around the present one
    for operation in operations:
        while open_ones and open_ones[-1][0] <= operation.start:
            open_ones.pop()
        in_optimizer = bool(open_ones) and open_ones[-1][1] == OPTIMIZER
        group = OPTIMIZER if in_optimizer or operation.name.startswith("Optimizer.") else group_of(operation, batch)
        seconds[group] += operation.duration * 1e-9
        if open_ones:
            seconds[open_ones[-1][1]] -= operation.duration * 1e-9
        open_ones.append((operation.start + operation.duration, group))


def recorded(step: Callable[[], object]) -> list[Operation]:
    """The operations of a step, by torch's profiler."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
    raw: Any = profiler.profiler
    return [
        Operation(e.name(), e.start_ns(), e.duration_ns(), e.shapes(), e.dtypes(), e.start_thread_id())
        for e in raw.kineto_results.events()
    ]
