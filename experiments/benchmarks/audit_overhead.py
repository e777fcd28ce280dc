"""What the audit costs in time and memory: ``python -m experiments.benchmarks.audit_overhead [--models M ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from experiments.benchmarks.measure import measure
from experiments.benchmarks.models import MODELS, BenchmarkModel
from experiments.benchmarks.options import add_fresh, add_output, add_settings, console, settings_of
from experiments.benchmarks.record import load, provenance, save, why_again
from experiments.benchmarks.settings import Settings
from experiments.benchmarks.table import markdown, rich_table
from experiments.benchmarks.ways import WAYS
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.files import write_text

BENCHMARK = "audit_overhead"


def main(arguments: Sequence[str] | None = None, models: Mapping[str, BenchmarkModel] = MODELS) -> int:
    """Measure, save after each model, print the tables.

    Args:
        arguments: command-line arguments; None takes those of the process.
        models: what ``--models`` chooses from.

    Returns:
        Exit code: 0, or 1 if a way that calls itself exact gave another matrix, or 2 if nothing could be measured.
    """
    options = _parser(models).parse_args(arguments)
    out = console()
    path = options.output / f"{options.device}.json"
    try:
        settings = settings_of(options)
        record = load(path, BENCHMARK)
        for name in options.models:
            reason = why_again(None if options.fresh else record["models"].get(name), settings, options.ways)
            if reason is None:
                out.print(f"{name}: kept from {path}; --fresh measures it anew")
            else:
                out.print(f"{name}: {reason}")
                found = measure(models[name], [WAYS[way] for way in options.ways], settings, out.print)
                targets = {"time_targets": dict(models[name].time_targets)}
                record["models"][name] = provenance(settings) | found | targets
                save(path, record)
                write_text(path.with_suffix(".md"), markdown(record))
            out.print(rich_table(record["models"][name]))
    except DisclosureError as error:
        print(error, file=sys.stderr)
        return 2
    out.print(f"{path}\n{path.with_suffix('.md')}")
    found_ways = [way for name in options.models for way in record["models"][name]["ways"].values()]
    return int(any(way["status"] == "wrong" for way in found_ways))


def _parser(models: Mapping[str, BenchmarkModel]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.benchmarks.{BENCHMARK}",
        description="Time and peak memory of an audited step, and of other ways to its matrix, against a plain step.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=list(models), default=list(models))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    add_settings(parser, Settings())
    add_output(parser, BENCHMARK)
    add_fresh(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
