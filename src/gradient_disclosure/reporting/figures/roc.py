"""ROC curves of the membership attacks, on log axes: what counts is the left end."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from sklearn.metrics import roc_curve

from gradient_disclosure.reporting.figures.style import MUTED, PALETTE, new_figure, style_axes
from gradient_disclosure.reporting.formatting import fixed, shown_estimate
from gradient_disclosure.reporting.record import RunRecord
from gradient_disclosure.reporting.values import estimate
from gradient_disclosure.reporting.vocabulary import MEMBERSHIP_ATTACKS

_STYLES = ("-", "--", "-.")


def roc(record: RunRecord) -> Figure | None:
    """TPR against FPR of every membership attack, on log-log axes, with the line of chance.

    The axis begins at 1 / (number of non-members): below it a rate cannot be measured.

    Args:
        record: the run; the AUC with its interval in the legend is read from its results.

    Returns:
        The figure, or None if no attack has scores of members and of non-members.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> roc(RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())) is None
        True
    """
    scored = {attack: _scored(record.examples, attack) for attack in MEMBERSHIP_ATTACKS}
    scored = {attack: rows for attack, rows in scored.items() if rows["member"].nunique() == 2}
    if not scored:
        return None
    figure = new_figure(9.0, 4.8)
    axes = figure.add_subplot()
    smallest = min(1.0 / (~rows["member"]).sum() for rows in scored.values())
    for attack, rows in scored.items():
        position = list(MEMBERSHIP_ATTACKS).index(attack)
        _curve(axes, record, attack, rows, PALETTE[position % len(PALETTE)], _STYLES[position % len(_STYLES)])
    chance = np.geomspace(smallest / 2, 1.0, 50)
    axes.plot(chance, chance, color=MUTED, linewidth=1.0, linestyle=":", label="chance")
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda rate, _: f"{100 * rate:g} %"))
    axes.set_xlim(smallest, 1.0)
    axes.set_ylim(smallest, 1.1)
    style_axes(
        axes,
        title="Membership inference, ROC",
        xlabel="false positive rate: non-members accused (log axis)",
        ylabel="true positive rate: members found (log axis)",
    )
    axes.legend(fontsize=8.5, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0), labelspacing=0.9)
    figure.tight_layout()
    return figure


def _scored(examples: pd.DataFrame, attack: str) -> pd.DataFrame:
    rows = examples[examples[attack].notna()]
    return rows.assign(member=rows["member"].astype(bool))


def _curve(axes: Axes, record: RunRecord, attack: str, rows: pd.DataFrame, color: str, style: str) -> None:
    # drop_intermediate would remove points that are collinear on linear axes only, and bend the curve on log axes.
    false_positive, true_positive, _ = roc_curve(rows["member"], rows[attack].astype(float), drop_intermediate=False)
    auc = shown_estimate(estimate(record.results, f"attack/{attack}/auc"), fixed)
    label = f"{MEMBERSHIP_ATTACKS[attack]}\nAUC {auc}"
    axes.step(false_positive, true_positive, where="post", color=color, linestyle=style, linewidth=1.8, label=label)
