"""Finding the results of runs below some folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.record import Results
from gradient_disclosure.reporting.vocabulary import DEFENSES


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes:
        folder: where its ``results.json`` lies, relative to the folder searched.
        results: flat results.
        copies: how often the same run was found; a sweep makes copies of a run whose settings a defense ignores.
    """

    folder: str
    results: Results
    copies: int = 1


@dataclass(frozen=True)
class Collection:
    """What was found.

    Attributes:
        runs: readable runs, each once, ordered by defense, epsilon and folder.
        problems: one sentence for each file that was left out.
    """

    runs: tuple[ComparedRun, ...]
    problems: tuple[str, ...]


def collect_runs(folders: Sequence[Path]) -> Collection:
    """Read every ``results.json`` at or below some folders.

    Runs with the same "meta/fingerprint" and the same results (costs and meta data apart) are one run with copies.

    Args:
        folders: folders to search.

    Returns:
        The runs, and what could not be read.

    Raises:
        DisclosureError: if a folder does not exist or no file was found at all.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "results.json").write_text('{"defense/name": "none"}')
        ...     collect_runs([Path(folder)]).runs[0].results
        {'defense/name': 'none'}
    """
    for folder in folders:
        if not folder.is_dir():
            raise DisclosureError(f"There is no folder {folder}. Name the output folder of a run or of a sweep.")
    found = {
        path.resolve(): _label(path.parent, folder, alone=len(folders) == 1)
        for folder in folders
        for path in sorted(folder.rglob("results.json"))
    }
    if not found:
        searched = ", ".join(str(folder) for folder in folders)
        raise DisclosureError(
            f"No results.json was found in or below {searched}. A run writes it when it has finished; "
            "name the output folder of a run or of a sweep."
        )
    runs: dict[str, ComparedRun] = {}
    problems = []
    for path, label in found.items():
        try:
            run = ComparedRun(label, read_results(path))
        except DisclosureError as error:
            problems.append(str(error))
            continue
        identity = _identity(run)
        known = runs.get(identity)
        runs[identity] = run if known is None else replace(known, copies=known.copies + 1)
    return Collection(tuple(sorted(runs.values(), key=_order)), tuple(problems))


def read_results(path: Path) -> Results:
    """Read the flat results of one run.

    Raises:
        DisclosureError: if the file is not a run's results; the message names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "results.json"
        ...     _ = path.write_text('{"defense/name": "none", "utility/test_accuracy": 0.9}')
        ...     read_results(path)
        {'defense/name': 'none', 'utility/test_accuracy': 0.9}
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise DisclosureError(f"{path} cannot be read and was left out: {error}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("defense/name"), str):
        raise DisclosureError(f"{path} was left out: it is not the results of a run, 'defense/name' is missing.")
    for key, value in content.items():
        if isinstance(value, dict | list):
            raise DisclosureError(f"{path} was left out: the value of {key!r} is not a plain number or text.")
    return content


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"it contains {constant}")


def _label(folder: Path, searched: Path, *, alone: bool) -> str:
    if folder == searched:
        return searched.resolve().name if alone else str(searched)
    return str(folder.relative_to(searched) if alone else folder)


def _identity(run: ComparedRun) -> str:
    fingerprint = run.results.get("meta/fingerprint")
    if fingerprint is None:
        return f"folder {run.folder}"
    # A repetition on another machine may differ in its results: it is then a run of its own, not a copy.
    outcome = {key: value for key, value in run.results.items() if not key.startswith(("meta/", "cost/"))}
    return json.dumps([fingerprint, outcome], sort_keys=True)


def _order(run: ComparedRun) -> tuple[int, str, float, str]:
    epsilon, defense = run.results.get("setting/epsilon"), str(run.results["defense/name"])
    known = list(DEFENSES)
    return (
        known.index(defense) if defense in known else len(known),
        defense,
        float(epsilon) if isinstance(epsilon, int | float) else float("inf"),
        run.folder,
    )
