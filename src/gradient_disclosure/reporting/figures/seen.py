"""A figure's line that says how much of the training its scores come from."""

from __future__ import annotations

from matplotlib.figure import Figure

from gradient_disclosure.reporting.audit_seen import sentence
from gradient_disclosure.reporting.figures.style import INK
from gradient_disclosure.reporting.record import Results


def say_what_was_audited(figure: Figure, results: Results) -> None:
    """Head a figure with the labels of a partial audit, before its layout is made; nothing for a full one.

    Example:
        >>> figure = Figure()
        >>> say_what_was_audited(figure, {"disclosure/every_n_steps": 2})
        >>> figure.get_suptitle()
        'Audited every 2nd step (one drawn at random of each 2).'
    """
    label = sentence(results)
    if label is not None:
        figure.suptitle(label, x=0.01, ha="left", fontsize=8.5, color=INK)
