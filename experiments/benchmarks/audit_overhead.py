"""What the audit costs in time and memory: ``python -m experiments.benchmarks.audit_overhead [--models M ...]``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console

from experiments.benchmarks.measure import measure
from experiments.benchmarks.models import MODELS, BenchmarkModel
from experiments.benchmarks.record import load, provenance, save, why_again
from experiments.benchmarks.settings import Settings
from experiments.benchmarks.table import markdown, rich_table
from experiments.benchmarks.ways import WAYS
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import write_text

BENCHMARK = "audit_overhead"
FOLDER = Path("experiments/results") / BENCHMARK


def main(arguments: Sequence[str] | None = None, models: Mapping[str, BenchmarkModel] = MODELS) -> int:
    """Measure, save after each model, print the tables.

    Args:
        arguments: command-line arguments; None takes those of the process.
        models: what ``--models`` chooses from.

    Returns:
        Exit code: 0, or 1 if a way that calls itself exact gave another matrix, or 2 if the file cannot be used.
    """
    options = _parser(models).parse_args(arguments)
    settings = Settings(
        options.device,
        options.threads,
        options.rounds,
        options.seconds_per_way,
        options.step_limit,
        options.memory_fraction,
        options.seed,
    )
    torch.set_num_threads(settings.threads)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each start and stop
    console = Console(width=None if sys.stdout.isatty() else 180)
    path = options.output / f"{settings.device}.json"
    try:
        _require(settings)
        record = load(path, BENCHMARK)
        for name in options.models:
            kept = None if options.fresh else record["models"].get(name)
            reason = why_again(kept, settings, options.ways)
            if reason is None:
                console.print(f"{name}: kept from {path}; --fresh measures it anew")
            else:
                console.print(f"{name}: {reason}")
                found = measure(models[name], [WAYS[way] for way in options.ways], settings, console.print)
                targets = {"time_targets": dict(models[name].time_targets)}
                record["models"][name] = provenance(settings) | found | targets
                save(path, record)
                write_text(path.with_suffix(".md"), markdown(record))
            console.print(rich_table(record["models"][name]))
    except DisclosureError as error:
        print(error, file=sys.stderr)
        return 2
    console.print(f"{path}\n{path.with_suffix('.md')}")
    found_ways = [way for name in options.models for way in record["models"][name]["ways"].values()]
    return int(any(way["status"] == "wrong" for way in found_ways))


def _require(settings: Settings) -> None:
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise DisclosureError("--device cuda: torch finds no GPU here. Use --device cpu.")


def _parser(models: Mapping[str, BenchmarkModel]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.benchmarks.{BENCHMARK}",
        description="Time and peak memory of an audited step, and of other ways to its matrix, against a plain step.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    base = Settings()
    parser.add_argument("--models", nargs="+", choices=list(models), default=list(models))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--device", choices=("cpu", "cuda"), default=base.device)
    parser.add_argument("--threads", type=int, default=base.threads)
    parser.add_argument("--rounds", type=int, default=base.rounds, help="interleaved rounds at most")
    parser.add_argument("--seconds-per-way", type=float, default=base.seconds_per_way, help="of measured steps, about")
    parser.add_argument("--step-limit", type=float, default=base.step_limit, help="seconds after which a step is cut")
    parser.add_argument("--memory-fraction", type=float, default=base.memory_fraction, help="of what is free")
    parser.add_argument("--seed", type=int, default=base.seed)
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--fresh", action="store_true", help="measure models again that are finished")
    return parser


if __name__ == "__main__":
    sys.exit(main())
