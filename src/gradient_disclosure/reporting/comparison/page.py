"""The self-contained HTML page of a comparison."""

from __future__ import annotations

from gradient_disclosure.reporting.comparison.collect import Collection
from gradient_disclosure.reporting.comparison.columns import comparison_grid, numbered
from gradient_disclosure.reporting.html import data_uri, environment

NOTES = (
    "– : the defense ignores this setting, or the number is not applicable, not reportable or missing; it never "
    "stands for 0.",
    "A censor depends on the data and gives no formal guarantee. ε covers the released model only, not reports or "
    "tuning.",
    "An attack that does not beat guessing is not proof of privacy. 'Attack not working' says nothing about a defense.",
    "GNQ of runs with another batch size, damping, scope or choice of layers cannot be compared; audited every n-th "
    "step, it is an estimate for all steps.",
    "One run is one draw of the data split and the seed: differences within the intervals say nothing.",
)


def render_comparison(collection: Collection, figure: bytes | None) -> str:
    """Render a comparison as one HTML page.

    Args:
        collection: runs and what was left out.
        figure: PNG of utility against attack success; None where there is nothing to draw.

    Returns:
        The page, which refers to nothing outside itself.

    Example:
        >>> "Comparison of 0 runs" in render_comparison(Collection((), ()), None)
        True
    """
    grid, names = numbered(comparison_grid(collection.runs))
    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            grid=grid,
            names=names,
            problems=collection.problems,
            figure=None if figure is None else data_uri(figure),
            notes=NOTES,
        )
    )
