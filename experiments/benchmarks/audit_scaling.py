"""How the audit's cost grows with batch size, length and width: ``python -m experiments.benchmarks.audit_scaling``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from experiments.benchmarks.measure import Record, measure
from experiments.benchmarks.options import add_fresh, add_output, add_settings, console, settings_of
from experiments.benchmarks.record import load, provenance, save, why_again
from experiments.benchmarks.scaling_plot import draw
from experiments.benchmarks.scaling_points import AXES, KINDS, Kind, Sizes, points
from experiments.benchmarks.settings import Settings
from experiments.benchmarks.ways import WAYS
from gradient_disclosure.errors import DisclosureError

BENCHMARK = "audit_scaling"
MEASURED = ("untouched", "reuse")


def main(
    arguments: Sequence[str] | None = None, axes: Mapping[str, Sequence[int]] = AXES, base: Sizes | None = None
) -> int:
    """Measure point by point, save after each, draw a figure for each kind of model.

    Args:
        arguments: command-line arguments; None takes those of the process.
        axes: values of each size.
        base: the sizes that stay while one is swept.

    Returns:
        Exit code: 0, or 2 if nothing could be measured.
    """
    options = _parser(axes).parse_args(arguments)
    base = base or Sizes()
    out = console()
    path = options.output / f"{options.device}.json"
    try:
        settings = settings_of(options)
        record = load(path, BENCHMARK)
        for kind in options.kinds:
            for axis in options.axes:
                for value, sizes in points(axis, axes[axis], base):
                    name = f"{kind}_{axis}_{value}"
                    kept = None if options.fresh else record["models"].get(name)
                    reason = why_again(kept, settings, MEASURED)
                    out.print(f"{name}: {reason or f'kept from {path}'}")
                    if reason is not None:
                        about: Record = {"kind": kind, "axis": axis, "value": value}
                        record["models"][name] = about | _measured(KINDS[kind], sizes, settings)
                        save(path, record)
                    out.print(_line(record["models"][name]))
            figure = path.with_name(f"{kind}_{options.device}.png")
            draw(record, kind, figure)
            out.print(str(figure))
    except DisclosureError as error:
        print(error, file=sys.stderr)
        return 2
    out.print(str(path))
    return 0


def _measured(kind: Kind, sizes: Sizes, settings: Settings) -> Record:
    found = measure(kind.model(sizes), [WAYS[way] for way in MEASURED], settings, lambda _: None)
    about = {"kind_description": kind.description, "sizes": asdict(sizes), "prediction": dict(kind.prediction(sizes))}
    return about | provenance(settings) | found


def _line(point: Record) -> str:
    parts = [f"plain {1e3 * point['plain']['seconds']['median']:.1f} ms"]
    for name, way in point["ways"].items():
        if "ratio" in way:
            predicted = point["prediction"][name]
            parts.append(f"{name} {way['ratio']['median']:.3f} (arithmetic {predicted:.3f})")
            parts.append(f"peak {way['peak_ratio']:.3f}")
        else:
            parts.append(f"{name}: {way['status']}, {way['reason']}")
    return "  " + "; ".join(parts)


def _parser(axes: Mapping[str, Sequence[int]]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.benchmarks.{BENCHMARK}",
        description="Time and memory of the audit against batch size, length and width, beside the arithmetic's word.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--axes", nargs="+", choices=list(axes), default=list(axes))
    add_settings(parser, Settings(rounds=15, seconds_per_way=20.0))
    add_output(parser, BENCHMARK)
    add_fresh(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
