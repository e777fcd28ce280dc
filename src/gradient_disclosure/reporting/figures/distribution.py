"""How GNQ is spread over the members."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gradient_disclosure.reporting.figures.seen import say_what_was_audited
from gradient_disclosure.reporting.figures.style import (
    BLUE,
    INK,
    MUTED,
    VERMILION,
    new_figure,
    plain_log_axis,
    style_axes,
)
from gradient_disclosure.reporting.formatting import significant
from gradient_disclosure.reporting.record import RunRecord


def gnq_distribution(record: RunRecord) -> Figure | None:
    """Histogram of the members' GNQ totals on a log axis, censored members apart.

    Args:
        record: the run.

    Returns:
        The figure, or None if no member has a GNQ above zero.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> gnq_distribution(RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())) is None
        True
    """
    members = record.members()
    positive = members[members["gnq_total"] > 0]
    if positive.empty:
        return None
    totals = positive["gnq_total"].to_numpy(dtype=float)
    censored = positive["censored_at_step"].notna().to_numpy(dtype=bool)
    low, high = totals.min(), totals.max()
    edges = np.geomspace(low / 1.05, high * 1.05, 41).tolist()

    figure = new_figure(9.0, 3.6)
    axes = figure.add_subplot()
    if censored.any():
        groups, colors = [totals[~censored], totals[censored]], [BLUE, VERMILION]
        labels = [f"kept ({(~censored).sum():,})", f"censored ({censored.sum():,})"]
        axes.hist(groups, bins=edges, stacked=True, color=colors, label=labels, edgecolor="white", linewidth=0.4)
    else:
        axes.hist(totals, bins=edges, color=BLUE, label=f"members ({len(totals):,})", edgecolor="white", linewidth=0.4)
    for value, name, style in ((np.median(totals), "median", "-"), (totals.mean(), "mean", "--")):
        axes.axvline(value, color=INK, linestyle=style, linewidth=1.2, label=f"{name} {significant(value)}")
    plain_log_axis(axes)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    style_axes(axes, title="GNQ of the members", xlabel="GNQ total (no unit, log axis)", ylabel="number of members")
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    zeros = len(members) - len(positive)
    if zeros:
        note = f"{zeros:,} members with GNQ 0\nhave no place on a log axis"
        axes.text(1.02, 0.02, note, transform=axes.transAxes, fontsize=8, color=MUTED, va="bottom")
    say_what_was_audited(figure, record.results)
    figure.tight_layout()
    return figure
