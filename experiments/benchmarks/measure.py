"""All ways on one model: do they give the same matrix, how long does a step take, how much memory does it need."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from experiments.benchmarks.memory import available_bytes, peak_bytes
from experiments.benchmarks.models import BenchmarkModel
from experiments.benchmarks.products import deviation
from experiments.benchmarks.settings import Settings
from experiments.benchmarks.timing import (
    Spread,
    StepLimitError,
    interleaved,
    seconds_of,
    seconds_of_step,
    step,
    step_limit,
)
from experiments.benchmarks.way import Way
from experiments.benchmarks.ways_ours import PLAIN, UNTOUCHED_FLOAT64
from experiments.benchmarks.ways_partial import PARTIAL, covered
from experiments.benchmarks.workload import Workload, without_dropout

Record = dict[str, Any]
LEAST_ROUNDS = 2
FEW = 4
"""Examples on which a way is judged in float64, if in float32 it is not near enough."""
EXACT_IN_FLOAT64 = 1e-9
"""Largest distance from ours, relative to the largest entry, of what calls itself exact."""
SLOW = 20.0
"""Seconds of a first step from which it is also taken for the usual one."""


@dataclass(frozen=True)
class Checked:
    """A way's first step, without dropout and without an optimizer step."""

    gram: Tensor | None
    gradients: list[Tensor]
    seconds: float


def measure(
    model: BenchmarkModel, ways: Sequence[Way], settings: Settings, say: Callable[[str], None] = print
) -> Record:
    """Measure some ways on one model.

    Args:
        model: what to train.
        ways: in the order of the table.
        settings: rounds, limits, device, seed.
        say: told what is going on.

    Returns:
        Plain containers, ready for JSON: about the model, the plain step and, by name, every way asked for.
    """
    workload = model.workload(settings.seed, settings.torch_device)
    plain = _checked(PLAIN, workload, settings)
    ours = _checked(UNTOUCHED_FLOAT64, workload, settings)
    assert ours.gram is not None
    records: dict[str, Record] = {}
    times: dict[str, float] = {}
    for way in ways:
        records[way.name], seconds = _attempt(way, workload, settings, plain.gradients, ours.gram)
        if seconds is not None:
            times[way.name] = seconds
        say(f"  {way.name}: {records[way.name]['status']}{_because(records[way.name])}")
    del plain, ours
    by_name = {way.name: way for way in (PLAIN, *ways)}
    plain_peak, times[PLAIN.name] = _warm(PLAIN, workload, 0.0)
    for name in [name for name in times if name != PLAIN.name]:
        try:
            peak, times[name] = _warm(by_name[name], workload, times[name])
            records[name] |= {"peak_bytes": peak, "peak_ratio": peak / plain_peak}
        except Exception as error:
            records[name] |= _failure(error)
            del times[name]
            say(f"  {name}: {records[name]['status']}{_because(records[name])}")
    rounds = _rounds({name: by_name[name] for name in times}, times, workload, settings)
    for name in times:
        if name != PLAIN.name:
            records[name] |= _ratios(name, rounds)
    return {
        "description": model.description,
        "optimizer": model.optimizer,
        "batch_size": workload.batch_size,
        "parameters": sum(p.numel() for p in workload.parameters),
        "plain": _seconds([r[PLAIN.name] for r in rounds]) | {"peak_bytes": plain_peak},
        "ways": records,
    }


def _checked(way: Way, workload: Workload, settings: Settings) -> Checked:
    """Gram matrix and gradient of the way's own making, at the initial weights."""
    found: list[Tensor | None] = []
    with without_dropout(workload.module), way.session(workload) as observe, step_limit(settings.step_limit):
        workload.optimizer.zero_grad()
        seconds = seconds_of(lambda: found.append(observe()), workload.inputs.device)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in workload.parameters]
    workload.optimizer.zero_grad()
    return Checked(found[0], gradients, seconds)


def _attempt(
    way: Way, workload: Workload, settings: Settings, gradients: list[Tensor], gram: Tensor
) -> tuple[Record, float | None]:
    """The way's record so far, and the time of its first step if it is to be measured."""
    record: Record = {"title": way.title, "exact": way.exact}
    needed, free = way.extra_bytes(workload), available_bytes(settings.torch_device)
    if needed:
        record["needed_bytes"] = needed
    if needed > settings.memory_fraction * free:
        return record | {"status": "out of memory", "reason": f"needs {_gb(needed)}, {_gb(free)} can be had"}, None
    try:
        checked = _checked(way, workload, settings)
    except Exception as error:  # a competitor may refuse a model in any way; its own words are what is reported
        return record | _failure(error), None
    finally:
        workload.optimizer.zero_grad()
    record |= {"status": "measured", "gradient_deviation": _furthest(checked.gradients, gradients)}
    if checked.gram is None:
        return record, checked.seconds
    record["gram_deviation"] = deviation(checked.gram, gram)
    if way.exact:
        record["tolerance"] = settings.tolerance
        if record["gram_deviation"] > settings.tolerance:
            record["float64_deviation"] = _deviation_in_float64(way, workload, settings)
        if record["gram_deviation"] <= settings.tolerance or record["float64_deviation"] <= EXACT_IN_FLOAT64:
            record["coverage"] = 1.0  # that of ours was checked, and this is the same matrix
        else:
            record |= {"status": "wrong", "reason": "its Gram matrix is not ours"}
    if way is PARTIAL:
        record["coverage"] = covered(workload)
    return record, checked.seconds


def _deviation_in_float64(way: Way, workload: Workload, settings: Settings) -> float:
    """How far a way is from ours on a few examples where rounding plays no part.

    In float32, a convolution of one example and one of a batch may differ by more than the tolerance (other kernels):
    that is no error of either way.
    """
    few = workload.in_float64(FEW)
    ours, its = _checked(UNTOUCHED_FLOAT64, few, settings).gram, _checked(way, few, settings).gram
    assert ours is not None
    assert its is not None
    return deviation(its, ours)


def _failure(error: Exception) -> Record:
    """What went wrong, in its own words."""
    gc.collect()  # what was broken off may have left its tensors in cycles
    if isinstance(error, StepLimitError):
        return {"status": "time limit", "reason": str(error)}
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error):
        return {"status": "out of memory", "reason": _short(error)}
    return {"status": "cannot run", "reason": f"{type(error).__name__}: {_short(error)}"}


def _warm(way: Way, workload: Workload, first: float) -> tuple[int, float]:
    """Peak memory, and the time of a step that is not the first, unless that took very long."""
    if not workload.optimizer.state:
        seconds_of_step(PLAIN, workload)  # makes the optimizer's state
    with way.session(workload) as observe:
        peak = peak_bytes(lambda: step(observe, workload), workload)
    return peak, first if first > SLOW else seconds_of_step(way, workload)


def _rounds(
    ways: Mapping[str, Way], times: Mapping[str, float], workload: Workload, settings: Settings
) -> list[dict[str, float]]:
    affordable = {name: int(settings.seconds_per_way / seconds) for name, seconds in times.items()}
    quotas = {name: max(LEAST_ROUNDS, min(settings.rounds, count)) for name, count in affordable.items()}
    quotas[PLAIN.name] = max(quotas.values())

    def timer(way: Way) -> Callable[[], float]:
        return lambda: seconds_of_step(way, workload)

    return interleaved({name: timer(way) for name, way in ways.items()}, quotas, settings.seed)


def _ratios(name: str, rounds: Sequence[Mapping[str, float]]) -> Record:
    mine = [r for r in rounds if name in r]
    ratios = [r[name] / r[PLAIN.name] for r in mine]
    extra = [r[name] - r[PLAIN.name] for r in mine]
    return _seconds([r[name] for r in mine]) | {
        "ratio": Spread.of(ratios).as_json(),
        "extra_seconds": Spread.of(extra).as_json(),
        "ratios": ratios,
    }


def _seconds(times: Sequence[float]) -> Record:
    return {"rounds": len(times), "seconds": Spread.of(times).as_json(), "times": list(times)}


def _furthest(found: list[Tensor], expected: list[Tensor]) -> float:
    """Largest relative distance of two gradients of one parameter."""
    pairs = [(float((a - b).norm()), float(b.norm())) for a, b in zip(found, expected, strict=True)]
    return max(distance / norm for distance, norm in pairs if norm > 0)


def _because(record: Record) -> str:
    return f" ({record['reason']})" if "reason" in record else ""


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"


def _short(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:300] + " …"
