"""The coordinates in which an attack searches."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError


@dataclass(frozen=True)
class InputScale:
    """Affine map under which the known value range is [-1, 1], so that step sizes and priors need not know it.

    Attributes:
        center: input at coordinate 0.
        half_width: input units in one unit of coordinate.
        bounded: whether a value range is known at all.
    """

    center: float
    half_width: float
    bounded: bool

    @classmethod
    def of(cls, value_range: tuple[float, float] | None) -> InputScale:
        """The map for a value range; the identity where none is known.

        Args:
            value_range: smallest and largest value of an input, or None.

        Returns:
            The map.

        Raises:
            AttackInputError: the range is empty or not finite.

        Example:
            >>> InputScale.of((0.0, 1.0))
            InputScale(center=0.5, half_width=0.5, bounded=True)
        """
        if value_range is None:
            return cls(0.0, 1.0, bounded=False)
        low, high = value_range
        if not -float("inf") < low < high < float("inf"):
            raise AttackInputError(f"value_range must be (smallest, largest) input value, but it is {value_range}.")
        return cls((low + high) / 2, (high - low) / 2, bounded=True)

    def to_inputs(self, coordinates: Tensor) -> Tensor:
        """Inputs at the given coordinates."""
        return self.center + self.half_width * coordinates

    def clamp(self, coordinates: Tensor) -> Tensor:
        """Nearest coordinates within the value range."""
        return coordinates.clamp(-1.0, 1.0) if self.bounded else coordinates
