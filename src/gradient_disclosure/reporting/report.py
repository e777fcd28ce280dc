"""Writing everything a finished run leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradient_disclosure.files import make_folder, to_json, write_bytes, write_parquet, write_text
from gradient_disclosure.reporting.figures.catalog import draw_all
from gradient_disclosure.reporting.figures.style import png
from gradient_disclosure.reporting.html import render_report
from gradient_disclosure.reporting.record import RunRecord


@dataclass(frozen=True)
class ReportFiles:
    """Where the parts of a report lie.

    Attributes:
        results: ``results.json``, flat keys.
        ledger: ``ledger.parquet``, one row an example.
        html: ``report.html``, self-contained.
        figures: PNG files by the names of the figure catalog, only those that the run has something to draw for.
    """

    results: Path
    ledger: Path
    html: Path
    figures: dict[str, Path]


def write_report(record: RunRecord, folder: Path, publish: Callable[[], None] | None = None) -> ReportFiles:
    """Write results, ledger, figures and the HTML report of a run.

    Everything is made in memory first, and ``results.json`` is written last: a folder that has one has a whole report.

    Args:
        record: the run.
        folder: created where it is missing.
        publish: called once figures, ledger and page are in the folder and before ``results.json``: a run that could
            not be published does not count as finished.

    Returns:
        The files written.

    Raises:
        RunFolderError: if the folder cannot be written to.
        DisclosureError: if a result is NaN or infinite; the message names it.

    Example:
        >>> import tempfile, pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> record = RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = write_report(record, Path(folder))
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['figures', 'ledger.parquet', 'report.html', 'results.json']
    """
    results = to_json("results.json", record.results)
    pictures = {name: png(figure) for name, figure in draw_all(record).items()}
    page = render_report(record, pictures)

    figure_folder = folder / "figures"
    make_folder(figure_folder)
    files = ReportFiles(
        results=folder / "results.json",
        ledger=folder / "ledger.parquet",
        html=folder / "report.html",
        figures={name: figure_folder / f"{name}.png" for name in pictures},
    )
    for name, path in files.figures.items():
        write_bytes(path, pictures[name])
    write_parquet(record.examples, files.ledger)
    write_text(files.html, page)
    if publish is not None:
        publish()
    write_text(files.results, results)
    return files
