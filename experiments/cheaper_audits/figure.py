"""Agreement with the full audit against cost, one row a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradient_disclosure.reporting.figures.style import BLUE, INK, VERMILION, new_figure, style_axes

PANELS = (
    ("spearman", "Spearman correlation with the full audit"),
    ("top_10pct_overlap", "share of the full audit's top 10 % found"),
)
MARKERS = ("^", "v", "D", "P", "X")


def draw(tasks: Mapping[str, Any]) -> Figure:
    """Draw every task of the results.

    Args:
        tasks: ``results["tasks"]``.
    """
    figure = new_figure(11.0, 0.6 + 4.2 * len(tasks))
    for row, (name, task) in enumerate(tasks.items()):
        for column, (key, ylabel) in enumerate(PANELS):
            axes = figure.add_subplot(len(tasks), 2, 2 * row + column + 1)
            _panel(axes, task["audits"], key)
            style_axes(
                axes,
                title=f"{name}, {len(task['setting']['seeds'])} seeds",
                xlabel="time of a training step with the audit / without (median, quartiles)",
                ylabel=ylabel,
            )
            if column == 0:
                axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout(h_pad=2.0, w_pad=2.5)
    return figure


def _panel(axes: Axes, audits: Mapping[str, Any], key: str) -> None:
    others = [audit for name, audit in audits.items() if name != "full" and audit["gnq_total"][key] is not None]
    strides = [audit for audit in others if audit["coverage"] == 1]
    _points(axes, strides, key, BLUE, "o", "every n-th step")
    for audit in strides:
        at = audit["cost"]["ratio"], audit["gnq_total"][key]
        words = f"n = {audit['every_n_steps']}"
        axes.annotate(words, at, xytext=(7, -11), textcoords="offset points", fontsize=8, color=INK)
    # Audits of some layers lie close together: their names go into the legend.
    for audit, marker in zip([audit for audit in others if audit["coverage"] < 1], MARKERS, strict=False):
        _points(axes, [audit], key, VERMILION, marker, f"every step, {audit['label']}")
    full = audits["full"]["cost"]["ratio"]
    axes.plot([full], [1.0], marker="s", color=INK, markersize=6, linestyle="none", label="full audit")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.06)
    axes.set_xlim(0.95, 1.0 + 1.25 * (max(full, axes.get_xlim()[1]) - 1.0))


def _points(axes: Axes, chosen: Sequence[Any], key: str, color: str, marker: str, words: str) -> None:
    x = [audit["cost"]["ratio"] for audit in chosen]
    y = [audit["gnq_total"][key] for audit in chosen]
    costs = [(audit["cost"]["ratio_low"], audit["cost"]["ratio_high"]) for audit in chosen]
    heights = None
    if key == "spearman":
        heights = _arms(y, [(a["gnq_total"]["spearman_low"], a["gnq_total"]["spearman_high"]) for a in chosen])
    axes.errorbar(
        x,
        y,
        xerr=_arms(x, costs),
        yerr=heights,
        fmt=marker,
        color=color,
        markersize=6,
        elinewidth=1,
        capsize=2,
        label=words,
        markerfacecolor="none" if color == VERMILION else color,
    )


def _arms(values: Sequence[float], ends: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Lengths of error bars down and up."""
    pairs = list(zip(values, ends, strict=True))
    return [[value - low for value, (low, _) in pairs], [high - value for value, (_, high) in pairs]]
