"""The results as Markdown tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADER = (
    "audit",
    "coverage",
    "Spearman, GNQ total",
    "Spearman, GNQ per draw",
    "Spearman, bits",
    "top 10 % found: total",
    "per draw",
    "members without score",
    "step with audit / plain",
)


def table(task: Mapping[str, Any]) -> str:
    """One task as a table.

    Args:
        task: one entry of ``results["tasks"]``.
    """
    lines = [_row(HEADER), _row(["---"] * len(HEADER))]
    for audit in task["audits"].values():
        total, draw, bits, cost = (audit[key] for key in ("gnq_total", "gnq_per_draw", "bits", "cost"))
        lines.append(
            _row(
                (
                    audit["label"],
                    f"{100 * audit['coverage']:.1f} %",
                    _estimate(total),
                    _estimate(draw),
                    _estimate(bits),
                    _percent(total["top_10pct_overlap"]),
                    _percent(draw["top_10pct_overlap"]),
                    f"{100 * draw['unscored_fraction']:.1f} %",
                    f"{cost['ratio']:.2f} [{cost['ratio_low']:.2f}, {cost['ratio_high']:.2f}]",
                )
            )
        )
    return "\n".join(lines)


def page(results: Mapping[str, Any]) -> str:
    """All tasks.

    Args:
        results: what the command writes as JSON.
    """
    parts = [
        "# Tables of `python -m experiments.cheaper_audits`",
        f"Made on {results['date']} on {results['hardware']}, torch {results['torch']}.",
    ]
    for name, task in results["tasks"].items():
        setting = task["setting"]
        norm = task["squared_norm_of_the_full_audit"]
        parts += [
            f"## {name}",
            f"{setting['network']}; {setting['members']} members, {setting['epochs']} epochs, batches of "
            f"{setting['batch_size']}, {setting['sampling']}; seeds {', '.join(map(str, setting['seeds']))}. A plain "
            f"step takes {task['plain_step_milliseconds']:.2f} ms.",
            table(task),
            "For comparison: the plain squared gradient norm, from every step and parameter, has a Spearman "
            f"correlation of {_estimate(norm)} with GNQ total and finds {_percent(norm['top_10pct_overlap'])} "
            "of its top 10 %.",
        ]
    return "\n\n".join(parts) + "\n"


def _percent(fraction: float | None) -> str:
    return "–" if fraction is None else f"{100 * fraction:.0f} %"


def _estimate(found: Mapping[str, Any]) -> str:
    if found["spearman"] is None:
        return "–"
    return f"{found['spearman']:.3f} [{found['spearman_low']:.3f}, {found['spearman_high']:.3f}]"


def _row(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"
