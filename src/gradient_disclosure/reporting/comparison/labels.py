"""Where to write beside points so that nothing overlaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, from the lower left corner (x0, y0) to the upper right corner (x1, y1)."""

    x0: float
    y0: float
    x1: float
    y1: float

    def overlap(self, other: Box) -> float:
        """Common area, in square pixels."""
        width = min(self.x1, other.x1) - max(self.x0, other.x0)
        height = min(self.y1, other.y1) - max(self.y0, other.y0)
        return max(0.0, width) * max(0.0, height)

    def outside(self, frame: Box) -> float:
        """Area outside a frame, in square pixels."""
        return (self.x1 - self.x0) * (self.y1 - self.y0) - self.overlap(frame)


def place_labels(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    obstacles: Sequence[Box],
    frame: Box,
) -> list[tuple[float, float]]:
    """Choose the center of each label: near its point, inside the frame, clear of obstacles and of the other labels.

    Labels are placed one after the other, each at the nearest free place; if none is free, at the least covered one.

    Args:
        anchors: the points to label, in pixels.
        sizes: width and height of each label, in pixels.
        obstacles: rectangles to keep clear of.
        frame: the rectangle to stay in.

    Returns:
        The centers of the labels, in pixels.

    Example:
        >>> place_labels([(50.0, 50.0)], [(20.0, 10.0)], [], Box(0.0, 0.0, 100.0, 100.0))
        [(68.0, 50.0)]
    """
    taken = list(obstacles)
    centers = []
    for anchor, size in zip(anchors, sizes, strict=True):
        center = min(
            _candidates(anchor, size), key=lambda place: _cost(_around(place[1], size), taken, frame, place[0])
        )[1]
        taken.append(_around(center, size))
        centers.append(center)
    return centers


def _candidates(anchor: tuple[float, float], size: tuple[float, float]) -> list[tuple[float, tuple[float, float]]]:
    """Places around a point on growing ellipses, each with its distance."""
    places = []
    for distance in (8.0, 16.0, 28.0, 44.0, 64.0, 90.0, 120.0, 160.0, 210.0, 270.0):
        for step in range(16):
            angle = step * math.pi / 8
            x = anchor[0] + math.cos(angle) * (size[0] / 2 + distance)
            y = anchor[1] + math.sin(angle) * (size[1] / 2 + distance)
            places.append((distance, (x, y)))
    return places


def _cost(box: Box, taken: Sequence[Box], frame: Box, distance: float) -> tuple[float, float]:
    return box.outside(frame) + sum(box.overlap(other) for other in taken), distance


def _around(center: tuple[float, float], size: tuple[float, float]) -> Box:
    # Two pixels of air keep neighboring labels apart.
    half_width, half_height = size[0] / 2 + 2, size[1] / 2 + 2
    return Box(center[0] - half_width, center[1] - half_height, center[0] + half_width, center[1] + half_height)
