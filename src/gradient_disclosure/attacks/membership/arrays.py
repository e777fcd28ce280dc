"""Turns what a caller has (torch or numpy) into checked float64 tensors, with errors that name the bad entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError

ArrayLike = Tensor | npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_SHOWN = 10


def shown(indices: Tensor) -> str:
    """The first few indices as text, and how many more there are.

    Args:
        indices: (K,) or (K, D) int64, one index a row.

    Returns:
        For example ``"[3, 7]"`` or ``"[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] and 5 more"``.

    Example:
        >>> shown(torch.tensor([3, 7]))
        '[3, 7]'
    """
    rest = len(indices) - _SHOWN
    return f"{indices[:_SHOWN].tolist()}" + (f" and {rest} more" if rest > 0 else "")


def as_float64(values: ArrayLike, name: str, ndim: int) -> Tensor:
    """A detached float64 CPU tensor of finite numbers.

    Args:
        values: torch tensor or numpy array.
        name: what the values are called in an error message.
        ndim: number of axes they must have.

    Returns:
        Tensor of the same shape, float64.

    Raises:
        AttackInputError: wrong number of axes, or NaN or infinity (the message names the indices).

    Example:
        >>> as_float64(np.array([1, 2]), "scores", ndim=1)
        tensor([1., 2.], dtype=torch.float64)
    """
    # A copy, because pandas hands out arrays that may not be written to, of which torch warns.
    owned = values if isinstance(values, Tensor) else np.array(values)
    tensor = torch.as_tensor(owned).detach().to("cpu", torch.float64)
    if tensor.ndim != ndim:
        raise AttackInputError(f"{name} must have {ndim} axes, but its shape is {tuple(tensor.shape)}.")
    bad = (~torch.isfinite(tensor)).nonzero()
    if len(bad):
        where = shown(bad.squeeze(1) if ndim == 1 else bad)
        raise AttackInputError(
            f"{name} holds NaN or infinity at index {where}: the model that gave it has diverged, or the signal was not"
            " computed stably. Remove that model or recompute the signal."
        )
    return tensor


def as_membership(values: ArrayLike, name: str, shape: tuple[int, ...]) -> Tensor:
    """A boolean CPU tensor of the given shape.

    Args:
        values: torch tensor or numpy array of bool, or of the numbers 0 and 1.
        name: what the values are called in an error message.
        shape: the shape they must have.

    Returns:
        Tensor of that shape, bool.

    Raises:
        AttackInputError: another shape, or a value that is neither 0 nor 1.

    Example:
        >>> as_membership(np.array([0, 1]), "membership", (2,))
        tensor([False,  True])
    """
    owned = values if isinstance(values, Tensor) else np.array(values)
    tensor = torch.as_tensor(owned).detach().cpu()
    if tuple(tensor.shape) != shape:
        raise AttackInputError(
            f"{name} must have shape {shape} like the signal, but its shape is {tuple(tensor.shape)}."
        )
    if tensor.dtype != torch.bool and not bool(((tensor == 0) | (tensor == 1)).all()):
        raise AttackInputError(f"{name} must be bool (or 0 and 1), True for a member; it holds other values.")
    return tensor.bool()
