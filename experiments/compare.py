"""Merge runs into one table: ``python -m experiments.compare DIR [DIR ...] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.comparison.collect import Collection, collect_runs
from gradient_disclosure.reporting.comparison.columns import comparison_grid, numbered, split_constant
from gradient_disclosure.reporting.comparison.write import write_comparison
from gradient_disclosure.reporting.table import grid_table

EVERYTHING_READ, SOMETHING_LEFT_OUT, NOTHING_FOUND = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare the runs below some folders.

    Args:
        arguments: command-line arguments; None takes those of the process.

    Returns:
        Exit code: 0 if every results.json was read, 1 if one was left out, 2 if there is nothing to compare.
    """
    parser = argparse.ArgumentParser(
        prog="python -m experiments.compare",
        description="Merge every results.json in and below folders into compare.csv, compare.html and compare.png.",
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="output folder of a run or of a sweep")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write; the first DIR by default")
    options = parser.parse_args(arguments)
    try:
        collection = collect_runs(options.folders)
        for problem in collection.problems:
            print(problem, file=sys.stderr)
        if not collection.runs:
            print("None of the files found can be compared.", file=sys.stderr)
            return NOTHING_FOUND
        files = write_comparison(collection, options.out or options.folders[0])
    except DisclosureError as error:
        print(error, file=sys.stderr)
        return NOTHING_FOUND
    _print_table(collection)
    for path in (files.csv, files.html, files.figure):
        if path is not None:
            print(path)
    return SOMETHING_LEFT_OUT if collection.problems else EVERYTHING_READ


def _print_table(collection: Collection) -> None:
    """Print one row a run; their folders and what they share stand below, so that the table stays narrow."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    grid, names = numbered(comparison_grid(collection.runs))
    grid, same = split_constant(grid)
    console.print(grid_table(grid, ruled=False, names=2))
    for number, name in enumerate(names, start=1):
        console.print(Text(f"{number}  {name}"))
    if same:
        console.print(
            Text("The same in all: " + ", ".join(f"{name} {value}".replace("\n", " ") for name, value in same))
        )
    console.print(Text("– : ignored by the defense, not applicable or missing; never 0."))


if __name__ == "__main__":
    sys.exit(main())
