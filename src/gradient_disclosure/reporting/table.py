"""The tables on the console: one side-by-side table first, the attacks in detail below it."""

from __future__ import annotations

from rich.box import HEAVY_HEAD, SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradient_disclosure.reporting.details import Grid, membership_grid, reconstruction_grid
from gradient_disclosure.reporting.notes import notes
from gradient_disclosure.reporting.record import Results
from gradient_disclosure.reporting.summary import Cell, Column, side_by_side, title


def console_table(results: Results) -> Group:
    """Lay out a run's numbers for a terminal of 100 columns.

    Args:
        results: flat results; a missing or None value is shown as an en dash.

    Returns:
        A rich renderable: utility | disclosure | attack success | cost side by side, then every attack in detail, then
        what the numbers do not mean.

    Example:
        >>> import io
        >>> from rich.console import Console
        >>> console = Console(width=100, file=io.StringIO(), record=True)
        >>> console.print(console_table({"utility/test_accuracy": 0.942}))
        >>> "94.2 %" in console.export_text()
        True
    """
    parts: list[RenderableType] = [_side_by_side_table(title(results), side_by_side(results))]
    for grid in (membership_grid(results), reconstruction_grid(results)):
        if grid is not None:
            parts += [Text(), grid_table(grid)]
    parts.append(Text())
    parts += [Padding(Text(f"* {note}", style="dim"), (0, 1)) for note in notes(results)]
    return Group(*parts)


def grid_table(grid: Grid, *, ruled: bool = True, names: int = 1) -> Table:
    """Turn a grid of texts into a rich table.

    Args:
        grid: the texts.
        ruled: draw a frame and a line between rows; without, the table is narrower.
        names: how many columns at the left hold names rather than numbers.

    Returns:
        The table.

    Example:
        >>> grid_table(Grid("Scores", ("Attack", "AUC"), (("LiRA", "0.6"),))).row_count
        1
    """
    table = Table(
        title=Text(grid.title),
        title_justify="left",
        title_style="bold",
        expand=ruled,
        box=HEAVY_HEAD if ruled else SIMPLE_HEAD,
        padding=(0, 1) if ruled else (0, 1, 0, 0),
    )
    for position, name in enumerate(grid.header):
        table.add_column(Text(name), justify="left" if position < names else "right", vertical="top")
    for row in grid.rows:
        table.add_row(*(Text(_interval_on_its_own_line(text)) for text in row), end_section=ruled)
    return table


def _side_by_side_table(name: str, columns: tuple[Column, ...]) -> Table:
    table = Table(title=Text(name), title_justify="left", title_style="bold", expand=True)
    for column, ratio in zip(columns, (17, 24, 27, 19), strict=True):
        table.add_column(column.title, ratio=ratio)
    table.add_row(*(Group(*map(_card, column.cells)) for column in columns))
    return table


def _card(cell: Cell) -> Text:
    return Text.assemble((cell.label, "dim"), "\n", ("  " + cell.text, "bold"))


def _interval_on_its_own_line(text: str) -> str:
    return text.replace(" [", "\n[")
