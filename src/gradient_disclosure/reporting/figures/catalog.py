"""Which figures a report has, in which order, and what each means and does not mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from gradient_disclosure.reporting.figures.agreement import gnq_against_attack
from gradient_disclosure.reporting.figures.distribution import gnq_distribution
from gradient_disclosure.reporting.figures.extremes import highest_and_lowest
from gradient_disclosure.reporting.figures.reconstructions import reconstruction_figure
from gradient_disclosure.reporting.figures.roc import roc
from gradient_disclosure.reporting.record import RunRecord


@dataclass(frozen=True)
class ReportFigure:
    """One figure of the report.

    Attributes:
        name: file name without its ending.
        title: heading, and the text for readers who cannot see the figure.
        means: what it shows.
        does_not_mean: the wrong reading to warn of.
        draw: makes the figure; None where the run has nothing to draw.
        shows_examples: True if training examples can be seen in it.
    """

    name: str
    title: str
    means: str
    does_not_mean: str
    draw: Callable[[RunRecord], Figure | None]
    shows_examples: bool = False


FIGURES = (
    ReportFigure(
        "gnq_distribution",
        "How gradient uniqueness is spread over the members",
        "Each bar counts members by their GNQ summed over the run. A long right tail is a few members who stand out "
        "far more than the rest.",
        "GNQ has no unit and no threshold above which an example is 'exposed': compare it within this run only.",
        gnq_distribution,
    ),
    ReportFigure(
        "gnq_against_attack",
        "Gradient uniqueness against a real attack",
        "Each point is a member: the score of LiRA online over its GNQ (left) and over its squared gradient norm "
        "(right). GNQ says more than the norm only if its correlation is clearly higher.",
        "A low correlation can come from a noisy attack with few shadow models; a high one does not show that GNQ "
        "is the cause. Non-members have no GNQ and are not shown.",
        gnq_against_attack,
    ),
    ReportFigure(
        "roc",
        "Membership inference: members found against non-members accused",
        "The higher a curve lies above the dotted line, the better the attack. The left end is what matters: there "
        "a few members are found while almost nobody is accused wrongly.",
        "A curve on the line of chance is not proof of privacy. The axis ends where there are too few non-members to "
        "measure a rate.",
        roc,
    ),
    ReportFigure(
        "reconstructions",
        "Reconstructions from the released gradients",
        "Originals above, what each attack made of the released gradient below, at each moment. The control uses the "
        "undefended gradient and shows whether the attack works at all.",
        "An attack marked 'not working' says nothing about the defense. A failure on a trained network need not be a "
        "merit of the defense either: DLG often fails on undefended trained networks. Look at the strongest attack.",
        reconstruction_figure,
        shows_examples=True,
    ),
    ReportFigure(
        "highest_and_lowest_gnq",
        "The members with the highest and the lowest gradient uniqueness",
        "Training examples at both ends of the ranking: typical images tend to have a low GNQ, unusual or "
        "mislabeled ones a high one.",
        "A low rank is not a guarantee for that person or example: an attack may still succeed on it.",
        highest_and_lowest,
        shows_examples=True,
    ),
)


def draw_all(record: RunRecord) -> dict[str, Figure]:
    """Draw every figure that the run has something to show for.

    Args:
        record: the run.

    Returns:
        Figures by name, in the order of the report.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> draw_all(RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ()))
        {}
    """
    drawn = {figure.name: figure.draw(record) for figure in FIGURES}
    return {name: figure for name, figure in drawn.items() if figure is not None}
