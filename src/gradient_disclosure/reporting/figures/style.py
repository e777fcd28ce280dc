"""One look for every figure: sober, legible at full size, safe for color-blind readers."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gradient_disclosure.reporting.formatting import significant

INK = "#222222"
MUTED = "#666666"
GRID = "#E3E3E3"
# Okabe and Ito's palette: told apart under every common color-vision deficiency, and by lightness in gray print.
BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY = "#0072B2", "#D55E00", "#009E73", "#E69F00", "#CC79A7", "#56B4E9"
PALETTE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)

DOTS_PER_INCH = 150


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure, drawn by Agg, outside pyplot.

    Args:
        width: inches; 9 fills the report's column.
        height: inches.

    Returns:
        The figure.

    Example:
        >>> new_figure(4.0, 3.0).get_size_inches().tolist()
        [4.0, 3.0]
    """
    figure = Figure(figsize=(width, height), dpi=DOTS_PER_INCH, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def style_axes(axes: Axes, *, title: str, xlabel: str, ylabel: str) -> None:
    """Label axes and give them the common look."""
    axes.set_title(title, loc="left", fontsize=10, color=INK, fontweight="bold")
    axes.set_xlabel(xlabel, fontsize=9, color=INK)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.tick_params(which="both", labelsize=8.5, labelcolor=INK, color=MUTED)
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)


def plain_log_axis(axes: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers; a narrow range gets numbers between the powers of ten, too.

    Example:
        >>> axes = new_figure(4.0, 3.0).add_subplot()
        >>> _ = axes.plot([6.0, 45.0], [0.0, 1.0])
        >>> plain_log_axis(axes)
        >>> [axes.xaxis.get_major_formatter()(x) for x in axes.get_xticks() if 6.0 <= x <= 45.0]
        ['10', '20']
    """
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high / low < 5:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    elif high / low < 30:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: significant(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def png(figure: Figure) -> bytes:
    """Render a figure as PNG, the same bytes for the same figure.

    Example:
        >>> png(new_figure(1.0, 1.0))[1:4]
        b'PNG'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
