"""Step times of several ways in one process, interleaved in shuffled order, and the spread of their ratios."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import FrameType

import numpy as np
import torch

from experiments.benchmarks.way import Observe, Way
from experiments.benchmarks.workload import Workload
from gradient_disclosure.errors import DisclosureError

RESAMPLES = 2000


class StepLimitError(DisclosureError):
    """A step took longer than it may."""


def step(observe: Observe, workload: Workload) -> None:
    """One whole training step."""
    workload.optimizer.zero_grad()
    observe()
    workload.optimizer.step()


def seconds_of_step(way: Way, workload: Workload) -> float:
    """Wall-clock time of one step; setting up the way is not in it."""
    with way.session(workload) as observe:
        return seconds_of(lambda: step(observe, workload), workload.inputs.device)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Wall-clock time of some work, on a GPU until it is really done."""
    _synchronize(device)
    started = time.perf_counter()
    work()
    _synchronize(device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def step_limit(seconds: float) -> Iterator[None]:
    """Break off what takes longer, between two operations of torch; not outside of the main thread."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise StepLimitError(f"one step takes longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def takes_part(number: int, quota: int, rounds: int) -> bool:
    """Whether a way with fewer steps than there are rounds has one in this round; they are spread evenly.

    Example:
        >>> [takes_part(number, 2, 5) for number in range(5)]
        [False, False, True, False, True]
    """
    return (number + 1) * quota // rounds > number * quota // rounds


def interleaved(
    timers: Mapping[str, Callable[[], float]], quotas: Mapping[str, int], seed: int = 0
) -> list[dict[str, float]]:
    """Times of each round: every way that takes part once, in a new random order.

    Args:
        timers: way → seconds of one step.
        quotas: way → number of its steps; the largest is the number of rounds.
        seed: of the order.
    """
    order = random.Random(seed)  # noqa: S311  # no secret depends on it
    rounds = max(quotas.values())
    found = []
    for number in range(rounds):
        names = [name for name in timers if takes_part(number, quotas[name], rounds)]
        order.shuffle(names)
        found.append({name: timers[name]() for name in names})
    return found


@dataclass(frozen=True)
class Spread:
    """A median with its spread.

    Attributes:
        median: of all values.
        quartiles: 25th and 75th percentile of the values.
        interval: 95 % bootstrap interval of the median.
    """

    median: float
    quartiles: tuple[float, float]
    interval: tuple[float, float]

    @classmethod
    def of(cls, values: Sequence[float], seed: int = 0) -> Spread:
        """The spread of some values.

        Example:
            >>> Spread.of([1.0, 1.0, 1.0]).interval
            (1.0, 1.0)
        """
        numbers = np.asarray(values, dtype=np.float64)
        drawn = np.random.default_rng(seed).choice(numbers, size=(RESAMPLES, len(numbers)))
        low, high = np.quantile(np.median(drawn, axis=1), [0.025, 0.975])
        first, third = np.quantile(numbers, [0.25, 0.75])
        return cls(float(np.median(numbers)), (float(first), float(third)), (float(low), float(high)))

    def as_json(self) -> dict[str, object]:
        """Plain numbers and lists."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
