"""Do the cheaper scopes say what the exact audit of the whole data set says?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradient_disclosure.reporting.figures.style import BLUE, INK, MUTED, VERMILION, new_figure, style_axes

DRAWN = 3000
"""Points of one panel; more would hide each other."""

ROWS = {"batch": (BLUE, "scope batch"), "universe_proxy": (VERMILION, "scope universe_proxy")}


def scope_agreement(
    table: pd.DataFrame, found: Mapping[str, Mapping[str, float]], *, damping: float, batch_damping: float
) -> Figure:
    """Scatter of the score in a batch against the exact score among all examples, a column for each batch size.

    Args:
        table: one row an example: ``dataset``, and ``batch_<b>`` and ``universe_proxy_<b>`` for each batch size b.
        found: column → spearman, spearman_top_decile, median_ratio, mean_ratio, over ALL examples.
        damping: λ in units of the sum over the data set.
        batch_damping: λ of the scope "batch", in units of a batch.

    Returns:
        The figure, drawn from at most 3 000 examples, evenly spaced by rank.

    Example:
        >>> table = pd.DataFrame({"dataset": [1.0, 2.0], "batch_8": [1.0, 2.0], "universe_proxy_8": [1.0, 2.0]})
        >>> same = {"spearman": 1.0, "spearman_top_decile": 1.0, "median_ratio": 1.0, "mean_ratio": 1.0}
        >>> found = {"batch_8": same, "universe_proxy_8": same}
        >>> len(scope_agreement(table, found, damping=1.0, batch_damping=0.01).axes)
        2
    """
    sizes = sorted(int(name.rpartition("_")[2]) for name in table.columns if name.startswith("batch_"))
    ranked = table.sort_values("dataset", ignore_index=True)
    drawn = ranked.iloc[np.unique(np.linspace(0, len(ranked) - 1, min(DRAWN, len(ranked))).astype(int))]
    figure = new_figure(3.4 * len(sizes) + 0.4, 7.0)
    for row, (scope, (color, title)) in enumerate(ROWS.items()):
        for column, size in enumerate(sizes):
            axes = figure.add_subplot(len(ROWS), len(sizes), row * len(sizes) + column + 1)
            name = f"{scope}_{size}"
            units = size / len(table) * damping if scope == "universe_proxy" else batch_damping
            _scatter(axes, drawn["dataset"].to_numpy(), drawn[name].to_numpy(), color, found[name])
            style_axes(
                axes,
                title=f"{title}, b = {size}\nλ of the batch = {units:.3g}",
                xlabel=f"exact GNQ among all {len(table):,} (λ = {damping:.3g})" if row else "",
                ylabel="GNQ by the cheaper scope" if column == 0 else "",
            )
    note = f"Dashed: equal. {len(drawn):,} of {len(table):,} examples drawn, evenly by rank; figures are of all."
    if "squared_norm" in found:
        norm = found["squared_norm"]
        note += (
            f" Baseline, the squared gradient norm: ρ = {norm['spearman']:.3f}, "
            f"{norm['spearman_top_decile']:.3f} within the top 10 %."
        )
    figure.tight_layout(w_pad=1.2, h_pad=1.5, rect=(0, 0.03, 1, 1))
    figure.text(0.01, 0.01, note, fontsize=8.5, color=MUTED)
    return figure


def _scatter(axes: Axes, exact: np.ndarray, score: np.ndarray, color: str, found: Mapping[str, float]) -> None:
    shown = (exact > 0) & (score > 0)
    axes.scatter(exact[shown], score[shown], s=5, color=color, alpha=0.35, linewidths=0, rasterized=True)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if shown.any():
        low, high = float(exact[shown].min()), float(exact[shown].max())
        axes.plot([low, high], [low, high], color=INK, linewidth=0.9, linestyle="--")
    text = (
        f"Spearman ρ = {found['spearman']:.3f}\n{found['spearman_top_decile']:.3f} within the top 10 %\n"
        f"median ratio {found['median_ratio']:.3g}\nratio of means {found['mean_ratio']:.3g}"
    )
    axes.text(0.04, 0.96, text, transform=axes.transAxes, fontsize=8.5, color=INK, va="top")
    hidden = int((~shown).sum())
    if hidden:
        axes.text(0.96, 0.03, f"{hidden} not above 0", transform=axes.transAxes, fontsize=7.5, color=MUTED, ha="right")
