"""Peak memory of one step, as torch's allocator sees it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.benchmarks.workload import Workload


def peak_bytes(step: Callable[[], object], workload: Workload) -> int:
    """Largest number of bytes held at any time of a step: what lives before it and what torch allocates in it.

    On a CPU the profiler's record of every allocation is added up, so the result does not depend on the system; scratch
    space inside of MKL and oneDNN is not in it. Gradients of an earlier step are dropped first.

    Args:
        step: the whole step.
        workload: what it works on.
    """
    workload.optimizer.zero_grad(set_to_none=True)
    gc.collect()
    device = workload.inputs.device
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return bytes_of(_living(workload)) + peak_growth(step)


def peak_growth(step: Callable[[], object]) -> int:
    """Largest sum of the bytes allocated less the bytes freed on the CPU since a function began.

    Example:
        >>> def twice() -> None:
        ...     for _ in range(2):
        ...         torch.empty(1000, dtype=torch.uint8)
        >>> peak_growth(twice)
        1000
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    recorded: Any = profiler.profiler
    events = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return peak


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages behind tensors, each once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _living(workload: Workload) -> Iterator[Tensor]:
    yield from workload.module.parameters()
    yield from workload.module.buffers()
    yield workload.inputs
    yield workload.targets
    for state in workload.optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def available_bytes(device: torch.device) -> int:
    """Memory that can still be had on a device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/meminfo does not say how much memory is available")
