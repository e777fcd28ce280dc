"""Outputs of one run whose gradients must be told apart."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from gradient_disclosure.gram.shared import tensors_of


def told_apart(output: Any) -> Any:
    """Where one output was computed from another (an LSTM cell's h from its c), give each a gradient of its own.

    The gradient of such a tensor holds what comes back through the other output too. That of a copy is what its users
    send back alone.

    Args:
        output: any nested structure.

    Returns:
        The same structure; its tensors are replaced by copies only where one depends on another.

    Example:
        >>> import torch
        >>> x = torch.ones(2, requires_grad=True)
        >>> c = x * 2
        >>> h = c * 3
        >>> [new is old for new, old in zip(told_apart((h, c)), (h, c))], told_apart((h, x * 5))[0] is h
        ([False, False], True)
    """
    tensors = [tensor for tensor in tensors_of(output) if tensor.grad_fn is not None]
    if len(tensors) < 2 or not _related(tensors):
        return output
    return tree_map_only(Tensor, lambda t: t.clone() if t.requires_grad else t, output)


def _related(tensors: list[Tensor]) -> bool:
    ends = {tensor.grad_fn for tensor in tensors}
    if len(ends) < 2:
        return False
    oldest = min(node._sequence_nr() for node in ends if node is not None)
    seen: set[Any] = set()
    waiting: list[Any] = list(ends)
    while waiting:
        node = waiting.pop()
        for following, _ in node.next_functions:
            if following is None or following in seen or following._sequence_nr() < oldest:
                continue
            if following in ends:
                return True
            seen.add(following)
            waiting.append(following)
    return False
