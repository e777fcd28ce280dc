"""Run something again, example by example under vmap, and differentiate it with respect to what the examples share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradient_disclosure.gram.shared import tensors_of

LARGEST_DIFFERENCE = 1e-4
"""Of the largest output. Rounding is smaller (but for reduced precision), what mixing examples changes is larger."""


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments of a call, with the axis along which each tensor holds the examples.

    Attributes:
        leaves: flattened arguments, tensors detached.
        structure: how to put them together again.
        axes: position of a leaf → axis of its examples. Other leaves are the same for all.
        batch_size: B; an axis of length k·B holds k consecutive rows an example.
    """

    leaves: tuple[Any, ...]
    structure: Any
    axes: dict[int, int]
    batch_size: int

    @classmethod
    def of(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], axis_of: Callable[[Tensor], int | None], batch_size: int
    ) -> Arguments:
        """Flatten ``(args, kwargs)``; ``axis_of`` tells the axis of the examples of a tensor, None if it has none."""
        leaves, structure = tree_flatten((args, kwargs))
        axes = {}
        for position, leaf in enumerate(leaves):
            axis = axis_of(leaf) if isinstance(leaf, Tensor) else None
            if axis is not None:
                axes[position] = axis
        kept = tuple(leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(kept, structure, axes, batch_size)

    def examples(self) -> list[Tensor]:
        """The batched leaves with the examples split off into axis 0, k rows of each kept on their own axis."""
        return [split_examples(self.leaves[position], axis, self.batch_size) for position, axis in self.axes.items()]

    def of_one(self, examples: Sequence[Tensor], replaced: dict[int, Any] | None = None) -> tuple[Any, Any]:
        """(args, kwargs) of one example; ``replaced`` puts other values in the place of some leaves."""
        leaves = list(self.leaves)
        for position, value in (replaced or {}).items():
            leaves[position] = value
        for position, value in zip(self.axes, examples, strict=True):
            leaves[position] = value
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs


def split_examples(tensor: Tensor, axis: int, batch_size: int) -> Tensor:
    """(..., k·B, ...) → (B, ..., k, ...)."""
    k = tensor.shape[axis] // batch_size
    return tensor.reshape(*tensor.shape[:axis], batch_size, k, *tensor.shape[axis + 1 :]).movedim(axis, 0)


Run = Callable[[Sequence[Tensor], Sequence[Tensor]], Any]
"""(shared values, tensors of one example) → output of that example."""


def outputs_agree(run: Run, shared: Sequence[Tensor], examples: Sequence[Tensor], outputs: Sequence[Tensor]) -> bool:
    """Whether running one example at a time gives the outputs that were computed on the whole batch.

    Args:
        run: one example's run.
        shared: values all examples share.
        examples: tensors with the examples along axis 0.
        outputs: the batch's outputs, examples split off into axis 0.

    Raises:
        RuntimeError: the run is random, or cannot be done one example at a time.
    """

    def one(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_of(run(shared, tensors)))

    with torch.no_grad():
        again = _for_each_example(one, one, examples)
    return len(again) == len(outputs) and all(map(_close, again, outputs))


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if not other.is_floating_point():
        return torch.equal(one, other)
    allowed = max(LARGEST_DIFFERENCE, 4 * torch.finfo(other.dtype).eps)
    finite = torch.isfinite(one) & torch.isfinite(other)
    if not bool(finite.any()):
        return True
    one, other = one[finite].double(), other[finite].double()
    return float((one - other).abs().max()) <= allowed * float(other.abs().max())


def per_example_vjp(
    run: Run, shared: Sequence[Tensor], examples: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """Each example's gradient of the shared values.

    Args:
        run: one example's run.
        shared: values all examples share.
        examples: tensors with the examples along axis 0.
        gradients: of the outputs, examples along axis 0; None where none arrived.

    Returns:
        One tensor (B, *shape) for each shared value.
    """
    present = [position for position, gradient in enumerate(gradients) if gradient is not None]
    arrived = [gradient for gradient in gradients if gradient is not None]
    count = len(examples)

    def under_vmap(*tensors: Tensor) -> tuple[Tensor, ...]:
        def forward(*values: Tensor) -> tuple[Tensor, ...]:
            outputs = tensors_of(run(values, tensors[:count]))
            return tuple(outputs[position] for position in present)

        outputs, vjp = torch.func.vjp(forward, *shared)[:2]
        found: tuple[Tensor, ...] = vjp(tuple(g.to(o.dtype) for g, o in zip(tensors[count:], outputs, strict=True)))
        return found

    def alone(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = [value.detach().requires_grad_() for value in shared]
        with torch.enable_grad():
            outputs = tensors_of(run(values, tensors[:count]))
        kept = [(outputs[at], g) for at, g in zip(present, tensors[count:], strict=True) if outputs[at].requires_grad]
        found = torch.autograd.grad([o for o, _ in kept], values, [g.to(o.dtype) for o, g in kept], allow_unused=True)
        return tuple(torch.zeros_like(v) if g is None else g for v, g in zip(values, found, strict=True))

    return _for_each_example(under_vmap, alone, [*examples, *arrived])


def _for_each_example(
    under_vmap: Callable[..., tuple[Tensor, ...]], alone: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """``vmap`` over axis 0, or a plain loop where vmap does not know an operation (recurrent layers)."""
    try:
        result: tuple[Tensor, ...] = torch.func.vmap(under_vmap)(*tensors)
        return result
    except RuntimeError as error:
        if "randomness" in str(error):
            raise
    before = torch.get_rng_state()
    try:
        rows = [alone(*(tensor[i] for tensor in tensors)) for i in range(tensors[0].shape[0])]
        random = not torch.equal(before, torch.get_rng_state())
    finally:
        torch.set_rng_state(before)
    if random:
        raise RuntimeError("randomness: the operation draws random numbers")
    return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
