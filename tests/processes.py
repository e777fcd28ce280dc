"""Runs a test's function in several processes that form a gloo process group."""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 150


def run_processes(function: str, folder: Path, n: int = 2) -> list[Any]:
    """Call ``package.module:name(folder)`` in ``n`` fresh processes; what each returned.

    Environment variables are those of torchrun, so Lightning joins the processes instead of starting its own.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(n),
        "LOCAL_WORLD_SIZE": str(n),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GROUP_RANK": "0",
        "TORCHELASTIC_RUN_ID": "test",
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    command = [sys.executable, "-m", "tests.processes", function, str(folder)]
    logs = [(folder / f"log_{rank}.txt").open("w") for rank in range(n)]
    processes = [
        subprocess.Popen(
            command,
            env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        for rank, log in enumerate(logs)
    ]
    try:
        codes = wait_for(processes)
    finally:
        for process in processes:
            process.kill()
        for log in logs:
            log.close()
    told = [(folder / f"log_{rank}.txt").read_text()[-3000:] for rank in range(n)]
    assert codes == [0] * n, "\n".join(told)
    return [torch.load(folder / f"result_{rank}.pt", weights_only=True) for rank in range(n)]


def wait_for(processes: list[subprocess.Popen[bytes]]) -> list[int | None]:
    """Exit codes; None for one that still ran when another had failed, or when time was up."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        codes = [process.poll() for process in processes]
        if None not in codes or any(codes):
            break
        time.sleep(0.05)
    return codes


def join() -> None:
    """Join the process group; whatever waits longer than a minute fails."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))


def main() -> None:
    module, name = sys.argv[1].split(":")
    folder = Path(sys.argv[2])
    torch.set_num_threads(1)
    result = getattr(importlib.import_module(module), name)(folder)
    torch.save(result, folder / f"result_{os.environ['RANK']}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
