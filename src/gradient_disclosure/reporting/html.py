"""The self-contained HTML report: one file, no network, every text escaped."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass

import jinja2
import pandas as pd
from matplotlib.image import imsave

from gradient_disclosure.reporting.details import membership_grid, reconstruction_grid
from gradient_disclosure.reporting.figures.catalog import FIGURES
from gradient_disclosure.reporting.figures.pixels import displayable
from gradient_disclosure.reporting.formatting import MISSING, fixed, percent, shown, significant
from gradient_disclosure.reporting.glossary import GLOSSARY
from gradient_disclosure.reporting.headline import headline
from gradient_disclosure.reporting.notes import notes
from gradient_disclosure.reporting.record import Results, RunRecord, Value
from gradient_disclosure.reporting.summary import side_by_side, title
from gradient_disclosure.reporting.values import text

TOP_EXAMPLES = 25
MOST_EXPOSED = 6


@dataclass(frozen=True)
class ExampleRow:
    """One example as the table shows it; every field but ``at_cap`` is text.

    Attributes:
        thumbnail: the image as a data URI; empty for data that are not images.
    """

    index: str
    label: str
    thumbnail: str
    gnq: str
    bits_gaussian: str
    bits_paper: str
    at_cap: bool
    accuracy_ceiling: str
    tpr_ceiling: str
    lira_online: str
    censored_at_step: str


def render_report(record: RunRecord, figures: Mapping[str, bytes]) -> str:
    """Render a run as one HTML page.

    Args:
        record: the run.
        figures: PNG bytes by the names of the figure catalog; a name left out is not shown.

    Returns:
        The page, which refers to nothing outside itself.

    Example:
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> record = RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())
        >>> "Disclosure report" in render_report(record, {})
        True
    """
    examples = example_rows(record, TOP_EXAMPLES)
    has_images = record.images is not None
    shows_examples = has_images or any(figure.shows_examples and figure.name in figures for figure in FIGURES)
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title(record.results),
            started=text(record.results, "meta/started"),
            shows_examples=shows_examples,
            has_images=has_images,
            answers=headline(record),
            most_exposed=examples[:MOST_EXPOSED] if has_images else (),
            columns=side_by_side(record.results),
            notes=notes(record.results),
            grids=[grid for grid in (membership_grid(record.results), reconstruction_grid(record.results)) if grid],
            figures=[
                {
                    "name": figure.name,
                    "title": figure.title,
                    "means": figure.means,
                    "does_not_mean": figure.does_not_mean,
                    "source": data_uri(figures[figure.name]),
                }
                for figure in FIGURES
                if figure.name in figures
            ],
            examples=examples,
            settings=_settings(record.results),
            everything=[(key, _plain(value)) for key, value in sorted(record.results.items())],
            glossary=GLOSSARY,
        )
    )


def environment() -> jinja2.Environment:
    """Make the template engine: every value is escaped, an unknown name is an error.

    Example:
        >>> environment().from_string("{{ name }}").render(name="<b>")
        '&lt;b&gt;'
    """
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gradient_disclosure.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def data_uri(png_bytes: bytes) -> str:
    """Embed a PNG in an address.

    Example:
        >>> data_uri(b"PNG")
        'data:image/png;base64,UE5H'
    """
    return "data:image/png;base64," + base64.b64encode(png_bytes).decode("ascii")


def example_rows(record: RunRecord, limit: int) -> tuple[ExampleRow, ...]:
    """The members with the highest GNQ totals, as text.

    Example:
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> example_rows(RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ()), 25)
        ()
    """
    # Records, not iterrows: a row as a Series would turn whole numbers into floats.
    rows = record.members().head(limit).to_dict("records")
    return tuple(_example_row(record, {str(key): value for key, value in row.items()}) for row in rows)


def _example_row(record: RunRecord, row: Mapping[str, object]) -> ExampleRow:
    def value(column: str) -> float | None:
        entry = row[column]
        return None if pd.isna(entry) else float(entry)  # type: ignore[call-overload, arg-type]

    index, label = int(value("index") or 0), int(value("label") or 0)
    step = value("censored_at_step")
    return ExampleRow(
        index=str(index),
        label=record.class_name(label),
        thumbnail=_thumbnail(record, index),
        gnq=shown(value("gnq_total"), significant),
        bits_gaussian=shown(value("bits_gaussian"), fixed),
        bits_paper=shown(value("bits_paper"), fixed),
        at_cap=bool(value("at_cap")),
        accuracy_ceiling=shown(value("attacker_accuracy_ceiling"), percent),
        tpr_ceiling=shown(value("attacker_tpr_ceiling_at_1pct_fpr"), percent),
        lira_online=shown(value("lira_online"), significant),
        censored_at_step=MISSING if step is None else str(int(step)),
    )


def _thumbnail(record: RunRecord, index: int) -> str:
    if record.images is None or record.value_range is None:
        return ""
    buffer = io.BytesIO()
    imsave(buffer, displayable(record.images[index], record.value_range), format="png")
    return data_uri(buffer.getvalue())


def _settings(results: Results) -> list[tuple[str, str]]:
    prefixes = (
        "setting/",
        "defense/",
        "disclosure/damping",
        "disclosure/effective_rank",
        "disclosure/inside_span",
        "disclosure/inverse",
        "disclosure/scope",
        "disclosure/coverage",
        "disclosure/parameters",
        "disclosure/every_n_steps",
        "meta/",
    )
    keys = [key for prefix in prefixes for key in sorted(results) if key.startswith(prefix)]
    return [(key.replace("_", " ").replace("/", ": "), _plain(results[key])) for key in keys]


def _plain(value: Value) -> str:
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
