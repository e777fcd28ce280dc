"""One look for every figure: sober, legible at full size, safe for color-blind readers."""

from __future__ import annotations

import io

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

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
    axes.tick_params(labelsize=8.5, colors=INK)
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(MUTED)


def png(figure: Figure) -> bytes:
    """Render a figure as PNG, the same bytes for the same figure.

    Example:
        >>> png(new_figure(1.0, 1.0))[1:4]
        b'PNG'
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None})
    return buffer.getvalue()
