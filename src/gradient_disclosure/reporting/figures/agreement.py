"""Does the score agree with a real attack? GNQ, and beside it the gradient norm as baseline."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradient_disclosure.reporting.figures.seen import say_what_was_audited
from gradient_disclosure.reporting.figures.style import BLUE, MUTED, VERMILION, new_figure, plain_log_axis, style_axes
from gradient_disclosure.reporting.formatting import fixed, shown_estimate
from gradient_disclosure.reporting.record import RunRecord
from gradient_disclosure.reporting.values import estimate


def gnq_against_attack(record: RunRecord) -> Figure | None:
    """Scatter of GNQ total, and of the squared gradient norm, against the LiRA online score of the members.

    Args:
        record: the run; Spearman's correlations and their intervals are read from its results.

    Returns:
        The figure with two panels, or None if no member has both scores.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> gnq_against_attack(RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())) is None
        True
    """
    members = record.members()
    if not ((members["gnq_total"] > 0) & members["lira_online"].notna()).any():
        return None
    figure = new_figure(9.0, 4.2)
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, sharey=left)
    _scatter(left, record, "gnq_total", "GNQ total", "GNQ total (no unit, log axis)")
    _scatter(right, record, "squared_norm_total", "Squared norm (baseline)", "squared gradient norm, total (log axis)")
    say_what_was_audited(figure, record.results)
    figure.tight_layout(w_pad=2.0)
    return figure


def _scatter(axes: Axes, record: RunRecord, column: str, name: str, xlabel: str) -> None:
    members = record.members()
    drawable = members[(members[column] > 0) & members["lira_online"].notna()]
    censored = drawable["censored_at_step"].notna()
    for rows, color, marker, label in (
        (drawable[~censored], BLUE, "o", "kept members" if censored.any() else "members"),
        (drawable[censored], VERMILION, "^", "censored members"),
    ):
        if len(rows):
            x, y = rows[column].astype(float), rows["lira_online"].astype(float)
            axes.scatter(x, y, s=14, color=color, marker=marker, alpha=0.55, linewidths=0, label=label)
    plain_log_axis(axes)
    rank = shown_estimate(estimate(record.results, f"disclosure/spearman_{column}_lira_online"), fixed)
    style_axes(
        axes,
        title=f"{name}\nSpearman {rank}",
        xlabel=xlabel,
        ylabel="LiRA online score\n(higher = more member-like)",
    )
    if censored.any():
        axes.legend(fontsize=8.5, frameon=True, framealpha=0.9, edgecolor="none", loc="lower right")
    hidden = len(members) - len(drawable)
    if hidden:
        note = f"{hidden:,} without a score above 0 not shown"
        axes.text(0.02, 0.98, note, transform=axes.transAxes, fontsize=8, color=MUTED, va="top")
