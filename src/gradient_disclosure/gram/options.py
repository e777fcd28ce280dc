"""What can be asked of a :class:`GradientGram`, and what cannot."""

from __future__ import annotations

from typing import Literal, get_args

LossReduction = Literal["mean", "sum"]
Mode = Literal["untouched", "reuse"]
Products = Literal["float64", "mixed"]

BYTES_OF_AN_ENTRY = 32
"""What an entry of a block of per-example gradients takes in all: the block, its conversion to float64, and the copies
of inputs and output gradients that a convolution's block comes from."""


def checked_mode(mode: str) -> None:
    """Raise ``ValueError`` for a mode that does not exist."""
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be one of {get_args(Mode)}, got {mode!r}")


def checked_products(products: str | None) -> None:
    """Raise ``ValueError`` for a precision that does not exist."""
    if products is not None and products not in get_args(Products):
        raise ValueError(f"products must be one of {get_args(Products)} or None, got {products!r}")


def checked_reduction(loss_reduction: str) -> None:
    """Raise ``ValueError`` for a reduction that does not exist."""
    if loss_reduction not in get_args(LossReduction):
        raise ValueError(f"loss_reduction must be one of {get_args(LossReduction)}, got {loss_reduction!r}")


def entries_within(memory_budget_mb: float) -> int:
    """How many entries of per-example gradients may be formed at a time.

    Raises:
        ValueError: a budget that is not positive.

    Example:
        >>> entries_within(64.0)
        2000000
    """
    if memory_budget_mb <= 0:
        raise ValueError(f"memory_budget_mb must be positive, got {memory_budget_mb}")
    return max(1, int(memory_budget_mb * 1e6 / BYTES_OF_AN_ENTRY))
