"""The columns of a comparison: which keys, how they are called and how they look."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from gradient_disclosure.reporting.comparison.collect import ComparedRun
from gradient_disclosure.reporting.details import Grid
from gradient_disclosure.reporting.formatting import (
    MISSING,
    Format,
    duration,
    fixed,
    percent,
    shown_estimate,
    significant,
    two_decimals,
)
from gradient_disclosure.reporting.record import Results, Value
from gradient_disclosure.reporting.summary import moment_in_words
from gradient_disclosure.reporting.values import estimate, text
from gradient_disclosure.reporting.vocabulary import defense_in_words

SETTINGS = {
    "setting/epsilon": "ε set",
    "setting/batch_size": "Batch\nsize",
    "setting/epochs": "Epochs",
    "setting/seed": "Seed",
}

OUTCOMES: dict[str, tuple[str, Format]] = {
    "utility/test_accuracy": ("Test\naccuracy", percent),
    "disclosure/gnq_total_mean": ("GNQ total,\nmean", significant),
    "attack/lira_online/auc": ("LiRA online\nAUC", fixed),
    "attack/lira_online/tpr_at_1pct_fpr": ("TPR at\n1 % FPR", percent),
    "attack/dlg/init/ssim": ("DLG SSIM\nat init", fixed),
    "defense/censored_fraction": ("Members\ncensored", percent),
    "defense/epsilon": ("ε by the\naccountant", two_decimals),
    "cost/total_seconds": ("Whole\nrun", duration),
}

FULL_AUDIT: dict[str, Value] = {"setting/every_n_steps": 1, "setting/layers": "all"}
"""Settings that are shown even if all runs share them, where they are not these: scores are then of a partial audit."""

INTERVALS = ("attack/lira_online/auc", "attack/lira_online/tpr_at_1pct_fpr")


def comparison_frame(runs: Sequence[ComparedRun]) -> pd.DataFrame:
    """Put runs into a table of raw values, one row a run.

    Args:
        runs: the runs.

    Returns:
        Columns "run", "copies", "defense/name", the settings, the outcomes with the ends of their intervals; a missing
        or ignored value is an en dash.

    Example:
        >>> frame = comparison_frame([ComparedRun("a", {"defense/name": "none", "utility/test_accuracy": 0.9})])
        >>> frame[["run", "setting/epsilon", "utility/test_accuracy"]].values.tolist()
        [['a', '–', 0.9]]
    """
    keys = ["defense/name", *_settings(runs)]
    for key in OUTCOMES:
        keys += [key, f"{key}_low", f"{key}_high"] if key in INTERVALS else [key]
    keys.append("attack/dlg/working")

    def raw(results: Results, key: str) -> object:
        value = results.get(key)
        return MISSING if value is None else value

    rows = [{"run": run.folder, "copies": run.copies, **{key: raw(run.results, key) for key in keys}} for run in runs]
    return pd.DataFrame(rows)


def comparison_grid(runs: Sequence[ComparedRun]) -> Grid:
    r"""Put runs into a table of texts, for readers.

    Args:
        runs: the runs.

    Returns:
        One row a run; "attack not working" and "not released" stand where a score would mislead.

    Example:
        >>> grid = comparison_grid([ComparedRun("a", {"defense/name": "none"})])
        >>> grid.header[:4], grid.rows[0][:4]
        (('Run', 'Defense', 'ε set', 'Batch\nsize'), ('a', 'no defense', '–', '–'))
    """
    settings = _settings(runs)
    header = ("Run", "Defense", *settings.values(), *(title for title, _ in OUTCOMES.values()))
    return Grid("Runs", header, tuple(_row(run, settings) for run in runs))


def numbered(grid: Grid) -> tuple[Grid, tuple[str, ...]]:
    """Put numbers in place of the runs' long names.

    Args:
        grid: a table whose first column names the runs.

    Returns:
        The table, and the names by number, from 1.

    Example:
        >>> grid, names = numbered(Grid("Runs", ("Run", "Seed"), (("sweep/a", "0"),)))
        >>> grid.rows, names
        ((('1', '0'),), ('sweep/a',))
    """
    rows = tuple((str(position), *row[1:]) for position, row in enumerate(grid.rows, start=1))
    return Grid(grid.title, ("#", *grid.header[1:]), rows), tuple(row[0] for row in grid.rows)


def split_constant(grid: Grid) -> tuple[Grid, tuple[tuple[str, str], ...]]:
    """Take the columns out of a comparison that hold the same text for every run.

    Args:
        grid: a table with one row a run; the first two columns always stay.

    Returns:
        The table without these columns, and their (header, text); a column of dashes is dropped. One run alone keeps
        all its columns.

    Example:
        >>> grid = Grid("Runs", ("Run", "Defense", "Seed"), (("a", "none", "0"), ("b", "none", "0")))
        >>> split_constant(grid)[1]
        (('Seed', '0'),)
    """
    if len(grid.rows) < 2:
        return grid, ()
    constant = {i for i in range(2, len(grid.header)) if len({row[i] for row in grid.rows}) == 1}

    def varying(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(text for i, text in enumerate(texts) if i not in constant)

    same = tuple((grid.header[i], grid.rows[0][i]) for i in sorted(constant) if grid.rows[0][i] != MISSING)
    return Grid(grid.title, varying(grid.header), tuple(varying(row) for row in grid.rows)), same


def _settings(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """The usual settings, those of a partial audit, and every other one in which the runs that have it differ."""
    names = sorted({key for run in runs for key in run.results if key.startswith("setting/")} - set(SETTINGS))
    varying = [name for name in names if len({text(run.results, name) for run in runs} - {None}) > 1]
    partial = [name for name, full in FULL_AUDIT.items() if any(run.results.get(name, full) != full for run in runs)]
    shown = dict.fromkeys([*partial, *varying])
    return SETTINGS | {name: name.removeprefix("setting/").replace("_", " ").capitalize() for name in shown}


def _row(run: ComparedRun, settings: dict[str, str]) -> tuple[str, ...]:
    name = run.folder if run.copies == 1 else f"{run.folder} (×{run.copies})"
    return (
        name,
        defense_in_words(text(run.results, "defense/name")),
        *(_setting(run.results, key) for key in settings),
        *(_outcome(run.results, key, form) for key, (_, form) in OUTCOMES.items()),
    )


def _setting(results: Results, key: str) -> str:
    value = results.get(key)
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) else str(value)


def _outcome(results: Results, key: str, form: Format) -> str:
    if key != "attack/dlg/init/ssim":
        return shown_estimate(estimate(results, key), form)
    if results.get("attack/dlg/working") is False:
        return "attack not working"
    return moment_in_words(results, "dlg", "init", "ssim", form)
