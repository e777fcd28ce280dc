"""Utility against attack success: one point a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradient_disclosure.reporting.comparison.collect import ComparedRun
from gradient_disclosure.reporting.comparison.labels import Box, place_labels
from gradient_disclosure.reporting.figures.style import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PALETTE,
    new_figure,
    style_axes,
)
from gradient_disclosure.reporting.values import Estimate, estimate, number, text
from gradient_disclosure.reporting.vocabulary import defense_in_words

_LOOKS = {"none": ("#444444", "s"), "gnq_censor": (BLUE, "o"), "random_censor": (ORANGE, "^"), "dp_sgd": (GREEN, "D")}
_OTHER_MARKERS = "vPX*<>"
_LEADER_FROM = 45.0
"""Distance in pixels from which a line leads from a point to its label."""


@dataclass(frozen=True)
class _Point:
    defense: str
    accuracy: float
    auc: Estimate
    label: str


def utility_against_attack(runs: Sequence[ComparedRun]) -> Figure | None:
    """Draw test accuracy against the AUC of LiRA online with its interval, one color a defense, ε written beside.

    Args:
        runs: the runs; one without an accuracy or an AUC is counted below the figure.

    Returns:
        The figure, or None if no run has both.

    Example:
        >>> utility_against_attack([ComparedRun("a", {"defense/name": "none"})]) is None
        True
    """
    points = [point for run in runs if (point := _point(run)) is not None]
    if not points:
        return None
    figure = new_figure(9.0, 5.2)
    axes = figure.add_subplot()
    names = list(dict.fromkeys(point.defense for point in points))
    for position, name in enumerate(names):
        color, marker = _LOOKS.get(name, (PALETTE[position % len(PALETTE)], _OTHER_MARKERS[position % 6]))
        _draw(axes, [point for point in points if point.defense == name], color, marker, defense_in_words(name))
    axes.axvline(0.5, color=MUTED, linestyle=":", linewidth=1.2, label="guessing")
    axes.margins(0.1)
    axes.set_ylim(*_roomy(axes.get_ylim()))
    style_axes(
        axes,
        title="Utility against attack success (better: up and to the left)",
        xlabel="AUC of LiRA online (0.5 = guessing), with its interval",
        ylabel="test accuracy (%)",
    )
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), labelspacing=0.8)
    hidden = len(runs) - len(points)
    if hidden:
        figure.text(0.01, 0.01, f"{hidden} runs without an accuracy or an AUC are not shown.", fontsize=8, color=MUTED)
    figure.tight_layout(rect=(0.0, 0.03 if hidden else 0.0, 1.0, 1.0))
    _label(figure, axes, points)
    return figure


def _point(run: ComparedRun) -> _Point | None:
    accuracy = number(run.results, "utility/test_accuracy")
    auc = estimate(run.results, "attack/lira_online/auc")
    if accuracy is None or auc is None:
        return None
    epsilon = number(run.results, "setting/epsilon") or number(run.results, "defense/epsilon")
    label = "" if epsilon is None else f"ε = {epsilon:.3g}"
    return _Point(text(run.results, "defense/name") or "unknown", 100 * accuracy, auc, label)


def _draw(axes: Axes, points: Sequence[_Point], color: str, marker: str, name: str) -> None:
    x = [point.auc.value for point in points]
    y = [point.accuracy for point in points]
    below = [point.auc.value - (point.auc.value if point.auc.low is None else point.auc.low) for point in points]
    above = [(point.auc.value if point.auc.high is None else point.auc.high) - point.auc.value for point in points]
    axes.errorbar(
        x,
        y,
        xerr=(below, above),
        fmt=marker,
        color=color,
        markersize=7,
        markeredgecolor="white",
        markeredgewidth=0.8,
        elinewidth=1.2,
        capsize=3,
        label=name,
    )


def _roomy(limits: tuple[float, float]) -> tuple[float, float]:
    """Keep runs of almost equal accuracy from looking far apart: show at least two percentage points."""
    low, high = limits
    missing = max(0.0, 2.0 - (high - low)) / 2
    return low - missing, min(high + missing, 100.5)


def _label(figure: Figure, axes: Axes, points: Sequence[_Point]) -> None:
    labeled = [point for point in points if point.label]
    if not labeled:
        return
    texts = [axes.text(point.auc.value, point.accuracy, point.label, fontsize=8.5, color=INK) for point in labeled]
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in texts]
    to_pixels, to_data = axes.transData, axes.transData.inverted()
    anchors = [tuple(to_pixels.transform((point.auc.value, point.accuracy))) for point in labeled]
    bounds = axes.get_window_extent()
    frame = Box(bounds.x0, bounds.y0, bounds.x1, bounds.y1)
    obstacles = [box for point in points for box in _obstacles(axes, point)]
    centers = place_labels(anchors, [(box.width, box.height) for box in boxes], obstacles, frame)
    for label, anchor, center in zip(texts, anchors, centers, strict=True):
        label.set(position=to_data.transform(center), ha="center", va="center")
        label.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1.0})
        if math.dist(anchor, center) > _LEADER_FROM:
            start, end = to_data.transform(anchor), to_data.transform(center)
            axes.plot(*zip(start, end, strict=True), color=MUTED, linewidth=0.6, zorder=0.5)


def _obstacles(axes: Axes, point: _Point) -> list[Box]:
    """The marker and the interval of a point, in pixels."""
    x, y = axes.transData.transform((point.auc.value, point.accuracy))
    marker = Box(x - 9, y - 9, x + 9, y + 9)
    if point.auc.low is None or point.auc.high is None:
        return [marker]
    left = axes.transData.transform((point.auc.low, point.accuracy))[0]
    right = axes.transData.transform((point.auc.high, point.accuracy))[0]
    return [marker, Box(left - 3, y - 6, right + 3, y + 6)]
