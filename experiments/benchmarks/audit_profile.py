"""Where the audit's extra time goes: ``python -m experiments.benchmarks.audit_profile --model gpt2_b16_t128``."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

from experiments.benchmarks.models import MODELS, BenchmarkModel
from experiments.benchmarks.options import add_output, console, settings_of
from experiments.benchmarks.profile_groups import GROUPS, grouped, recorded
from experiments.benchmarks.record import load, provenance, save
from experiments.benchmarks.settings import Settings
from experiments.benchmarks.timing import seconds_of, seconds_of_step, step
from experiments.benchmarks.way import Way
from experiments.benchmarks.ways_ours import PLAIN, REUSE, UNTOUCHED
from experiments.benchmarks.workload import Workload
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import write_text

BENCHMARK = "audit_profile"


def main(arguments: Sequence[str] | None = None, models: Mapping[str, BenchmarkModel] = MODELS) -> int:
    """Profile a plain step and audited ones, in turn; write and print the medians.

    Args:
        arguments: command-line arguments; None takes those of the process.
        models: what ``--model`` chooses from.

    Returns:
        Exit code: 0, or 2 if nothing could be measured.
    """
    options = _parser(models).parse_args(arguments)
    out = console()
    path = options.output / "cpu.json"
    try:
        settings = settings_of(options)
        record = load(path, BENCHMARK)
        workload = models[options.model].workload(settings.seed, settings.torch_device)
        found: dict[str, Any] = {"description": models[options.model].description}
        found["ways"] = profiled((PLAIN, UNTOUCHED, REUSE), workload, settings.rounds)
        record["models"][options.model] = provenance(settings) | found
        save(path, record)
        write_text(path.with_suffix(".md"), markdown(record))
    except DisclosureError as error:
        print(error, file=sys.stderr)
        return 2
    table = Table(*headings(found["ways"]), title=found["description"], title_justify="left")
    for row in rows(found["ways"]):
        table.add_row(*row)
    out.print(table)
    out.print(f"{path}\n{path.with_suffix('.md')}")
    return 0


def profiled(ways: Sequence[Way], workload: Workload, rounds: int) -> dict[str, Any]:
    """Medians over some rounds of the seconds of each group, by way; ``wall`` is the whole step's, profiler included.

    Args:
        ways: the plain step first.
        workload: what the steps work on.
        rounds: each way once a round.
    """
    for way in ways:
        seconds_of_step(way, workload)
    found: dict[str, list[dict[str, float]]] = {way.name: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            found[way.name].append(_profile(way, workload))
    return {
        name: {key: statistics.median(each[key] for each in steps) for key in (*GROUPS, "wall")}
        for name, steps in found.items()
    }


def _profile(way: Way, workload: Workload) -> dict[str, float]:
    walls: list[float] = []
    with way.session(workload) as observe:
        operations = recorded(lambda: walls.append(seconds_of(lambda: step(observe, workload), workload.inputs.device)))
    return grouped(operations, workload.batch_size, walls[0]) | {"wall": walls[0]}


def headings(ways: Mapping[str, Any]) -> list[str]:
    """Names of the columns."""
    others = [name for name in ways if name != PLAIN.name]
    return ["ms a step", PLAIN.name, *(title for name in others for title in (name, f"{name} − plain"))]


def rows(ways: Mapping[str, Any]) -> list[list[str]]:
    """Milliseconds of each group, and more than in the plain step; in parts of the plain step too."""
    plain = ways[PLAIN.name]
    found = []
    for group in (*GROUPS, "wall"):
        cells = [group if group != "wall" else "whole step", f"{1e3 * plain[group]:.1f}"]
        for name, seconds in ways.items():
            if name != PLAIN.name:
                more = seconds[group] - plain[group]
                cells += [f"{1e3 * seconds[group]:.1f}", f"{1e3 * more:+.1f} ({more / plain['wall']:+.1%})"]
        found.append(cells)
    return found


def markdown(record: Mapping[str, Any]) -> str:
    """The whole record as a page."""
    parts = [f"# {BENCHMARK}\n\n{NOTE}"]
    for name, model in record["models"].items():
        head = headings(model["ways"])
        lines = ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows(model["ways"]))]
        machine = model["hardware"]
        where = f"{machine['cpu']}, {machine['threads']} threads, {model['measured']}"
        parts.append(f"## {name}\n\n{model['description']}. {where}.\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


NOTE = """Median milliseconds of each group of operations by torch's profiler, which itself slows what is between
operations; percentages are of the plain step. What a way saves (autograd's weight gradients, in reuse) is negative.
"""


def _parser(models: Mapping[str, BenchmarkModel]) -> argparse.ArgumentParser:
    base = replace(Settings(), rounds=5)
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.benchmarks.{BENCHMARK}",
        description="Where the audit's extra time goes, by groups of operations (on a CPU).",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", choices=list(models), default=next(iter(models)))
    parser.add_argument("--threads", type=int, default=base.threads)
    parser.add_argument("--rounds", type=int, default=base.rounds)
    parser.add_argument("--seed", type=int, default=base.seed)
    parser.set_defaults(
        device=base.device,
        seconds_per_way=base.seconds_per_way,
        step_limit=base.step_limit,
        memory_fraction=base.memory_fraction,
    )
    add_output(parser, BENCHMARK)
    return parser


if __name__ == "__main__":
    sys.exit(main())
