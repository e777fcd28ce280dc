"""Who was disclosed most and least: the images at both ends of the ranking by GNQ."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from gradient_disclosure.reporting.audit_seen import sentence
from gradient_disclosure.reporting.figures.pixels import displayable, place_image
from gradient_disclosure.reporting.figures.seen import say_what_was_audited
from gradient_disclosure.reporting.figures.style import INK, new_figure
from gradient_disclosure.reporting.formatting import significant
from gradient_disclosure.reporting.record import RunRecord

_COLUMNS, _ROWS, _SIDE, _STEP_X, _STEP_Y = 8, 2, 0.92, 1.09, 1.36
_HEADING = 0.34


def highest_and_lowest(record: RunRecord) -> Figure | None:
    """Grid of the members with the highest and with the lowest GNQ totals, each with its label and GNQ.

    Args:
        record: the run.

    Returns:
        The figure; None for data that are not images and without members that have a GNQ.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> highest_and_lowest(RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())) is None
        True
    """
    members = record.members()
    if record.images is None or members.empty:
        return None
    shown = min(_COLUMNS * _ROWS, (len(members) + 1) // 2)
    rows = -(-shown // _COLUMNS)
    block = _HEADING + rows * _STEP_Y
    label = sentence(record.results)
    figure = new_figure(9.0, 2 * block + (0.1 if label is None else 0.35))
    if label is not None:
        say_what_was_audited(figure, record.results)
    _block(figure, record, members.head(shown), "Highest GNQ: the most exposed members", 2 * block + 0.05)
    # A censored example stopped adding, so a low total does not make it one of the least exposed.
    whole = members[members["censored_at_step"].isna()]
    _block(figure, record, whole.tail(shown)[::-1], "Lowest GNQ: the least exposed members", block + 0.05)
    return figure


def _block(figure: Figure, record: RunRecord, members: pd.DataFrame, heading: str, top: float) -> None:
    width, height = figure.get_size_inches()
    figure.text(0.16 / width, (top - 0.2) / height, heading, fontsize=10, fontweight="bold", color=INK)
    assert record.images is not None
    assert record.value_range is not None
    for position, (index, label, total) in enumerate(
        zip(members["index"], members["label"], members["gnq_total"], strict=True)
    ):
        row, column = divmod(position, _COLUMNS)
        box = (0.16 + column * _STEP_X, top - _HEADING - row * _STEP_Y - _SIDE, _SIDE)
        caption = f"{_short(record.class_name(int(label)))}\nGNQ {significant(float(total))}"
        place_image(figure, displayable(record.images[int(index)], record.value_range), box, caption)


def _short(name: str, limit: int = 14) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"
