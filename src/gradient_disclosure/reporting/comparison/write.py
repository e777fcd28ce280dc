"""Writing a comparison: CSV for programs, HTML for readers, PNG for slides."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradient_disclosure.files import make_folder, write_bytes, write_text
from gradient_disclosure.reporting.comparison.collect import Collection
from gradient_disclosure.reporting.comparison.columns import comparison_frame
from gradient_disclosure.reporting.comparison.figure import utility_against_attack
from gradient_disclosure.reporting.comparison.page import render_comparison
from gradient_disclosure.reporting.figures.style import png


@dataclass(frozen=True)
class ComparisonFiles:
    """Where the parts of a comparison lie; ``figure`` is None where no run has both an accuracy and an AUC."""

    csv: Path
    html: Path
    figure: Path | None


def write_comparison(collection: Collection, folder: Path) -> ComparisonFiles:
    """Write ``compare.csv``, ``compare.html`` and ``compare.png``.

    Args:
        collection: the runs.
        folder: created where it is missing.

    Returns:
        The files written.

    Raises:
        RunFolderError: if the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> from gradient_disclosure.reporting.comparison.collect import ComparedRun
        >>> runs = (ComparedRun("a", {"defense/name": "none"}),)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_comparison(Collection(runs, ()), Path(folder)).html.name
        'compare.html'
    """
    figure = utility_against_attack(collection.runs)
    picture = None if figure is None else png(figure)
    make_folder(folder)
    csv, html, image = folder / "compare.csv", folder / "compare.html", folder / "compare.png"
    write_text(csv, comparison_frame(collection.runs).to_csv(index=False))
    write_text(html, render_comparison(collection, picture))
    if picture is None:
        return ComparisonFiles(csv, html, None)
    write_bytes(image, picture)
    return ComparisonFiles(csv, html, image)
