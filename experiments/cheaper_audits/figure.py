"""Agreement with the full audit against cost, one row a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradient_disclosure.reporting.figures.style import BLUE, INK, VERMILION, new_figure, style_axes

PANELS = (
    ("spearman", "Spearman correlation with the full audit"),
    ("top_10pct_overlap", "share of the full audit's top 10 % found"),
)


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
                title=f"{name}: {task['setting']['network']}, {len(task['setting']['seeds'])} seeds",
                xlabel="time of a training step with the audit / without (median, quartiles)",
                ylabel=ylabel,
            )
            if row == 0 and column == 0:
                axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.tight_layout(h_pad=2.0, w_pad=2.5)
    return figure


def _panel(axes: Axes, audits: Mapping[str, Any], key: str) -> None:
    looks = ((False, BLUE, "o", "every n-th step"), (True, VERMILION, "^", "some layers, every step"))
    for of_layers, color, marker, words in looks:
        others = [audit for name, audit in audits.items() if name != "full" and audit["gnq_total"][key] is not None]
        chosen = [audit for audit in others if (audit["coverage"] < 1) is of_layers]
        x = [audit["cost"]["ratio"] for audit in chosen]
        sides = [
            [audit["cost"]["ratio"] - audit["cost"]["ratio_low"] for audit in chosen],
            [audit["cost"]["ratio_high"] - audit["cost"]["ratio"] for audit in chosen],
        ]
        y = [audit["gnq_total"][key] for audit in chosen]
        heights = None
        if key == "spearman":
            ends = [(a["gnq_total"]["spearman_low"], a["gnq_total"]["spearman_high"]) for a in chosen]
            heights = [
                [v - low for v, (low, _) in zip(y, ends, strict=True)],
                [h - v for v, (_, h) in zip(y, ends, strict=True)],
            ]
        axes.errorbar(
            x, y, xerr=sides, yerr=heights, fmt=marker, color=color, markersize=6, elinewidth=1, capsize=2, label=words
        )
        for audit, across, up in zip(chosen, x, y, strict=True):
            axes.annotate(
                audit["label"], (across, up), xytext=(7, -11), textcoords="offset points", fontsize=8, color=INK
            )
    full = audits["full"]["cost"]["ratio"]
    axes.plot([full], [1.0], marker="s", color=INK, markersize=6, linestyle="none", label="full audit")
    axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.06)
    axes.set_xlim(0.95, 1.0 + 1.25 * (max(full, axes.get_xlim()[1]) - 1.0))
