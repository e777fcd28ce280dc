"""The benchmark as a table: on the console and in Markdown, from the same cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from experiments.benchmarks.targets import is_short, memory_verdict, opacus_verdict, time_verdict

HEADINGS = ("way", "exact", "time ratio", "95 %", "extra", "peak ratio", "Gram off by", "time target", "memory target")
EXACT = {True: "yes", False: "NO", None: "–"}


def title(model: Mapping[str, Any]) -> str:
    """What the model is and what its plain step costs."""
    seconds = model["plain"]["seconds"]["median"]
    return (
        f"{model['description']}; {model['optimizer']}; {model['parameters'] / 1e6:.2f} M parameters; plain step "
        f"{_duration(seconds)}, peak {model['plain']['peak_bytes'] / 1e6:.0f} MB"
        + ("; below 50 ms: no target applies" if is_short(model) else "")
    )


def rows(model: Mapping[str, Any]) -> list[list[str]]:
    """One row of cells a way, under ``HEADINGS``."""
    return [_row(model, name, way) for name, way in model["ways"].items()]


def notes(model: Mapping[str, Any]) -> list[str]:
    """Why some ways have no numbers, or wrong ones."""
    return [f"{way['title']}: {way['status']}. {way['reason']}." for way in model["ways"].values() if "reason" in way]


def _row(model: Mapping[str, Any], name: str, way: Mapping[str, Any]) -> list[str]:
    if "ratio" not in way:
        return [way["title"], EXACT[way["exact"]], way["status"], *[""] * (len(HEADINGS) - 3)]
    low, high = way["ratio"]["interval"]
    exact = EXACT[way["exact"]]
    if way["status"] == "wrong":
        exact = "WRONG"
    elif way.get("coverage", 1.0) < 1.0:
        exact += f" ({way['coverage']:.0%} of parameters)"
    time, opacus = time_verdict(model, name), opacus_verdict(model, name)
    verdicts = [str(time)] if time else []
    verdicts += [f"Opacus's {opacus.target:.2f} {'met' if opacus.met else 'NOT met'}"] if opacus else []
    return [
        way["title"],
        exact,
        f"{way['ratio']['median']:.3f}",
        f"{low:.3f} to {high:.3f} ({way['rounds']} rounds)",
        _duration(way["extra_seconds"]["median"]),
        f"{way['peak_ratio']:.3f}",
        f"{way['gram_deviation']:.1e}" if "gram_deviation" in way else "–",
        "; ".join(verdicts),
        str(memory_verdict(model, name) or ""),
    ]


def rich_table(model: Mapping[str, Any]) -> Table:
    """For the console."""
    caption = Text("\n".join(notes(model)))
    table = Table(*HEADINGS, title=Text(title(model)), title_justify="left", caption=caption, caption_justify="left")
    for row in rows(model):
        table.add_row(*[Text(cell, style="red" if "NOT met" in cell or cell == "WRONG" else "") for cell in row])
    return table


def markdown(record: Mapping[str, Any]) -> str:
    """The whole record as a page."""
    parts = [f"# {record['benchmark']}", NOTE]
    for name, model in record["models"].items():
        machine = model["hardware"]
        where = f"{machine.get('gpu', machine['cpu'])}, {machine['threads']} threads, {model['measured']}"
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows(model)]
        head = "| " + " | ".join(HEADINGS) + " |\n|" + "---|" * len(HEADINGS)
        parts.append(f"\n## {name}\n\n{title(model)}. {where}.\n\n{head}\n" + "\n".join(lines) + "\n")
        parts += [f"- {note}" for note in notes(model)]
    return "\n".join(parts)


NOTE = """
A step is zero_grad, forward, loss, backward and the optimizer's step; every way but the plain one gives the B×B Gram
matrix besides. Steps of all ways are interleaved in one process in a new order each round; a ratio is the way's time
over the plain step's of the same round; given are the median and its 95 % bootstrap interval. "Gram off by" is the
largest difference from the Gram matrix of ours in float64 relative to its largest entry, with dropout off. Peak
memory is what torch allocated. Competitors multiply in float32; ours in mixed precision where blocks are large (as the
callback does unless λ is tiny) and in float64 elsewhere, or in float64 everywhere where the row says so.
"""


def _duration(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) < 1 else f"{seconds:.2f} s"
