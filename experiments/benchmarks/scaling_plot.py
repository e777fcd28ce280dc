"""Measured and predicted cost of the audit against batch size, length and width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradient_disclosure.files import write_atomically

COLORS = {"untouched": "#0072B2", "reuse": "#D55E00"}
LABELS = {"B": "batch size B", "T": "positions T", "width": "width"}
PLAIN_COLOR = "#555555"


def draw(record: Mapping[str, Any], kind: str, path: Path) -> None:
    """One figure: a column an axis; time ratio, milliseconds and peak memory ratio in rows.

    Args:
        record: of the scaling benchmark.
        kind: whose points are drawn.
        path: of the PNG.
    """
    of_kind = [point for point in record["models"].values() if point["kind"] == kind]
    axes = list(dict.fromkeys(point["axis"] for point in of_kind))
    figure = Figure(figsize=(4.2 * len(axes), 9.5), layout="constrained")
    grid = figure.subplots(3, len(axes), squeeze=False)
    for column, axis in enumerate(axes):
        chosen = sorted((point for point in of_kind if point["axis"] == axis), key=lambda point: point["value"])
        _draw_ratios(grid[0][column], chosen, axis)
        _draw_seconds(grid[1][column], chosen, axis)
        _draw_memory(grid[2][column], chosen, axis)
        fixed = ", ".join(f"{name} = {size}" for name, size in chosen[0]["sizes"].items() if name != axis)
        grid[0][column].set_title(fixed, fontsize=10)
    machine = of_kind[0]["hardware"]
    where = machine.get("gpu", f"{machine['cpu']}, {machine['threads']} thread(s)")
    figure.suptitle(f"{of_kind[0]['kind_description']}\n{where}", fontsize=11)
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    write_atomically(path, lambda temporary: figure.savefig(temporary, dpi=130, format="png"))


def _draw_ratios(place: Axes, chosen: Sequence[Mapping[str, Any]], axis: str) -> None:
    for way, color in COLORS.items():
        measured = [point for point in chosen if "ratio" in point["ways"].get(way, {})]
        if measured:
            ratios = [point["ways"][way]["ratio"] for point in measured]
            x, middle = [point["value"] for point in measured], [ratio["median"] for ratio in ratios]
            low = [m - r["interval"][0] for m, r in zip(middle, ratios, strict=True)]
            high = [r["interval"][1] - m for m, r in zip(middle, ratios, strict=True)]
            place.errorbar(x, middle, yerr=[low, high], color=color, marker="o", capsize=3, label=f"{way}, measured")
        x = [point["value"] for point in chosen]
        y = [point["prediction"][way] for point in chosen]
        place.plot(x, y, color=color, linestyle="--", label=f"{way}, by the arithmetic")
    _finish(place, axis, "step time / plain step time")
    place.axhline(1.0, color=PLAIN_COLOR, linewidth=0.8)


def _draw_seconds(place: Axes, chosen: Sequence[Mapping[str, Any]], axis: str) -> None:
    x = [point["value"] for point in chosen]
    plain = [1e3 * point["plain"]["seconds"]["median"] for point in chosen]
    place.plot(x, plain, color=PLAIN_COLOR, marker="s", label="plain step")
    for way, color in COLORS.items():
        measured = [point for point in chosen if "seconds" in point["ways"].get(way, {})]
        times = [1e3 * point["ways"][way]["seconds"]["median"] for point in measured]
        place.plot([point["value"] for point in measured], times, color=color, marker="o")
    place.set_yscale("log")
    place.legend(frameon=False, fontsize=9)
    _finish(place, axis, "step time (ms)")


def _draw_memory(place: Axes, chosen: Sequence[Mapping[str, Any]], axis: str) -> None:
    for way, color in COLORS.items():
        measured = [point for point in chosen if "peak_ratio" in point["ways"].get(way, {})]
        peaks = [point["ways"][way]["peak_ratio"] for point in measured]
        place.plot([point["value"] for point in measured], peaks, color=color, marker="o")
    place.axhline(1.0, color=PLAIN_COLOR, linewidth=0.8)
    _finish(place, axis, "peak memory / plain peak memory")


def _finish(place: Axes, axis: str, label: str) -> None:
    place.set_xscale("log", base=2)
    place.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    place.set_xlabel(LABELS[axis])
    place.set_ylabel(label)
    place.grid(alpha=0.3)
