"""How precisely the audit multiplies gradients: as λ needs it."""

from __future__ import annotations

import math

from gradient_disclosure.gram.options import Products
from gradient_disclosure.scores.gnq import GnqResult
from gradient_disclosure.scores.scoring import Scoring

SMALLEST_RELATIVE_DAMPING = 1e-4
"""λ / mean ‖g‖² from which products in mixed precision do.

Measured on blocks of 19 million entries with 64 examples, half of them near copies of one another (the worst case),
they change K by 5e-8 of the mean ‖g‖² (spectral norm): the scores of the near copies, which are small, by 0.4 %, all
others by 1e-8.
"""


class ProductPrecision:
    """Chooses "mixed" where that cannot be seen in the scores, and "float64" everywhere else.

    λ is compared with the largest mean squared norm of all steps so far; the first step is always in float64, and so
    are pseudo-inverses, whose cut-off is far below what mixed precision tells from zero, and scopes other than the
    batch, whose λ is in other units.

    Args:
        asked: what the user wants, None to choose.
        scoring: how the step is scored.

    Example:
        >>> import torch
        >>> from gradient_disclosure.scores.gnq import gradient_uniqueness
        >>> precision = ProductPrecision(None, Scoring())
        >>> first = precision.products
        >>> precision.note(gradient_uniqueness(torch.eye(2), 1e-2))
        >>> first, precision.products
        ('float64', 'mixed')
    """

    def __init__(self, asked: Products | None, scoring: Scoring) -> None:
        if asked not in (None, "float64", "mixed"):
            raise ValueError(f"products must be 'float64', 'mixed' or None, got {asked!r}")
        self._asked: Products | None = asked
        if scoring.scope != "batch" or scoring.inverse != "damped":
            self._asked = asked or "float64"
        self.smallest_relative_damping: float | None = None

    @property
    def products(self) -> Products:
        """For the step that begins."""
        if self._asked is not None:
            return self._asked
        smallest = self.smallest_relative_damping
        return "float64" if smallest is None or smallest < SMALLEST_RELATIVE_DAMPING else "mixed"

    def note(self, result: GnqResult) -> None:
        """A step was scored."""
        found = result.relative_damping
        if math.isfinite(found):
            self.smallest_relative_damping = min(found, self.smallest_relative_damping or found)
