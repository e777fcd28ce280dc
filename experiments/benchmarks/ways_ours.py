"""A plain step, and this project's own ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor

from experiments.benchmarks.way import CannotRunError, Observe, Way
from experiments.benchmarks.workload import Workload
from gradient_disclosure.gram.engine import GradientGram


@contextmanager
def plain_session(workload: Workload) -> Iterator[Observe]:
    """Forward and backward, nothing else."""

    def observe() -> None:
        workload.loss().backward()

    yield observe


def observed(workload: Workload, **options: Any) -> Tensor:
    """One pass under ``GradientGram``; stops where a parameter is left out."""
    with GradientGram(workload.module, verify=False, **options) as gram:
        workload.loss().backward()
        found = gram.gram()
    if gram.coverage != 1.0:
        raise CannotRunError(f"coverage is {gram.coverage}, not 1.0")
    return found


def _session(**options: Any) -> Callable[[Workload], AbstractContextManager[Observe]]:
    @contextmanager
    def session(workload: Workload) -> Iterator[Observe]:
        yield lambda: observed(workload, **options)

    return session


PLAIN = Way("plain", "plain step", None, plain_session)
CONTROL = Way("control", "plain step, measured again", None, plain_session)
UNTOUCHED = Way("untouched", "ours, untouched", True, _session(products="mixed"))
UNTOUCHED_FLOAT64 = Way("untouched_float64", "ours, untouched, products in float64", True, _session())
REUSE = Way("reuse", "ours, reuse", True, _session(mode="reuse"))
