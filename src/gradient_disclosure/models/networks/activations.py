"""Activations by name, none of them in place (hooks on a module's output forbid in-place changes of it)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def make_activation(name: str) -> nn.Module:
    """A new activation module.

    Args:
        name: a key of `ACTIVATIONS`.

    Raises:
        ValueError: no activation has this name.

    Example:
        >>> make_activation("tanh")
        Tanh()
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation '{name}'; known are {', '.join(ACTIVATIONS)}.")
    return ACTIVATIONS[name]()
