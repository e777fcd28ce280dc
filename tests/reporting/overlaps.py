"""Finds texts of a figure that overlap each other or leave the figure, as a reader would see them."""

from __future__ import annotations

from itertools import combinations

from matplotlib.figure import Figure
from matplotlib.text import Text


def find_overlaps(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of overlapping texts; a text that leaves the figure is paired with '(edge)'."""
    figure.canvas.draw()
    undrawn = _labels_of_ticks_beyond_the_axes(figure)
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown if id(text) not in undrawn]
    found = [
        (name, "(edge)")
        for name, box in boxes
        if box.x0 < 0 or box.y0 < 0 or box.x1 > figure.bbox.width or box.y1 > figure.bbox.height
    ]
    for (first, a), (second, b) in combinations(boxes, 2):
        width = min(a.x1, b.x1) - max(a.x0, b.x0)
        height = min(a.y1, b.y1) - max(a.y0, b.y0)
        if width > 1 and height > 1:
            found.append((first, second))
    return found


def _labels_of_ticks_beyond_the_axes(figure: Figure) -> set[int]:
    """Matplotlib keeps these as visible texts but never draws them."""
    labels = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not low * (1 - 1e-9) <= tick.get_loc() <= high * (1 + 1e-9):
                    labels |= {id(tick.label1), id(tick.label2)}
    return labels
