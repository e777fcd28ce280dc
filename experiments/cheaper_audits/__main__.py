"""Rank with cheaper audits: ``python -m experiments.cheaper_audits [--data-root DIR] [--tasks ...] [--out FOLDER]``."""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import warnings
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from experiments.cheaper_audits.agreement import Pairs, over_seeds
from experiments.cheaper_audits.cost import costs
from experiments.cheaper_audits.figure import draw
from experiments.cheaper_audits.page import page
from experiments.cheaper_audits.scored import Scores, refuse_another_trajectory, scores
from experiments.cheaper_audits.tasks import TASKS, Task, quick
from experiments.cheaper_audits.variants import FULL, Variant, variants
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import make_folder, write_bytes, write_text
from gradient_disclosure.pipeline.folder import fingerprint
from gradient_disclosure.reporting.figures.style import png

RANKED = ("gnq_total", "gnq_per_draw", "bits")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, compare, time, write; what ``--work`` holds already is read back.

    Args:
        arguments: command-line arguments; None takes those of the process.

    Returns:
        Exit code: 0, or 1 with a message.
    """
    parser = argparse.ArgumentParser(prog="python -m experiments.cheaper_audits", description=__doc__)
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--out", type=Path, default=Path("experiments/results/cheaper_audits"))
    parser.add_argument("--work", type=Path, default=Path("outputs/cheaper_audits"), help="trainings in progress")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="as small as it goes; the numbers mean nothing")
    options = parser.parse_args(arguments)
    _quiet()
    torch.set_num_threads(options.threads)
    try:
        found = {}
        for name in options.tasks:
            task = quick(TASKS[name]) if options.quick else TASKS[name]
            found[name] = compare(task, options.data_root, options.work)
        _write(found, options.out)
    except DisclosureError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def compare(task: Task, root: Path, work: Path) -> dict[str, Any]:
    """Every audit of one task against the full one.

    Args:
        task: the training.
        root: folder of the data sets.
        work: trainings and timings in progress.
    """
    recipe = task.recipe(root)
    audits = variants(recipe.module())
    folder = work / f"{task.name}-{fingerprint({**task.description(), 'blocks': task.timing_blocks})[:12]}"
    make_folder(folder)
    by_seed = {seed: _scores(recipe, audits, seed, folder / str(seed)) for seed in task.seeds}
    timed = _timed(task, recipe, audits, folder / "cost.json")
    full = [by_seed[seed][FULL] for seed in task.seeds]
    norms = [Pairs(each.gnq_total, each.squared_norm_total) for each in full]
    return {
        "setting": task.description(),
        "plain_step_milliseconds": timed["plain"]["milliseconds"],
        "squared_norm_of_the_full_audit": over_seeds(norms),
        "audits": {
            audit.name: {
                "label": audit.label,
                "every_n_steps": audit.every_n_steps,
                "layers": "all" if audit.layers is None else list(audit.layers),
                "coverage": by_seed[task.seeds[0]][audit.name].coverage,
                **{key: _agreement(full, [by_seed[s][audit.name] for s in task.seeds], key) for key in RANKED},
                "cost": timed[audit.name],
            }
            for audit in audits
        },
    }


def _agreement(full: Sequence[Scores], other: Sequence[Scores], key: str) -> dict[str, Any]:
    return over_seeds([Pairs(getattr(a, key), getattr(b, key)) for a, b in zip(full, other, strict=True)])


def _scores(recipe: Any, audits: Sequence[Variant], seed: int, folder: Path) -> dict[str, Scores]:
    found: dict[str, Scores] = {}
    for audit in audits:
        found[audit.name] = scores(recipe, audit, seed, folder / audit.name)
        refuse_another_trajectory(found[FULL], found[audit.name], audit.name)
        print(f"{folder}: {audit.label}", flush=True)
    return found


def _timed(task: Task, recipe: Any, audits: Sequence[Variant], path: Path) -> dict[str, Any]:
    if not path.exists():
        write_text(path, json.dumps(costs(recipe, audits, task.timing_blocks), indent=1))
    timed: dict[str, Any] = json.loads(path.read_text())
    return timed


def _write(tasks: dict[str, Any], out: Path) -> None:
    results = {
        "date": datetime.now().astimezone().date().isoformat(),
        "hardware": f"{platform.machine()} CPU, {torch.get_num_threads()} thread(s)",
        "torch": torch.__version__,
        "tasks": tasks,
    }
    make_folder(out)
    write_bytes(out / "cheaper_audits.png", png(draw(tasks)))
    write_text(out / "tables.md", page(results))
    write_text(out / "results.json", json.dumps(results, indent=1))
    print(out / "tables.md")


def _quiet() -> None:
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


if __name__ == "__main__":
    sys.exit(main())
