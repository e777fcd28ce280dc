"""Command-line options that all benchmarks share."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import torch
from rich.console import Console

from experiments.benchmarks.settings import Settings
from gradient_disclosure.errors import DisclosureError


def add_settings(parser: argparse.ArgumentParser, base: Settings) -> None:
    """Options for every field of ``Settings``, its values as defaults."""
    parser.add_argument("--device", choices=("cpu", "cuda"), default=base.device)
    parser.add_argument("--threads", type=int, default=base.threads)
    parser.add_argument("--rounds", type=int, default=base.rounds, help="interleaved rounds at most")
    parser.add_argument("--seconds-per-way", type=float, default=base.seconds_per_way, help="of measured steps, about")
    parser.add_argument("--step-limit", type=float, default=base.step_limit, help="seconds after which a step is cut")
    parser.add_argument("--memory-fraction", type=float, default=base.memory_fraction, help="of what is free")
    parser.add_argument("--seed", type=int, default=base.seed)


def add_output(parser: argparse.ArgumentParser, benchmark: str) -> None:
    """Where to write."""
    folder = Path("experiments/results") / benchmark
    parser.add_argument("--output", type=Path, default=folder, metavar="FOLDER")


def add_fresh(parser: argparse.ArgumentParser) -> None:
    """Whether to begin anew."""
    parser.add_argument("--fresh", action="store_true", help="measure again what is finished")


def settings_of(options: argparse.Namespace) -> Settings:
    """The settings that were given, in force from now on.

    Raises:
        DisclosureError: the device is not there.
    """
    if options.device == "cuda" and not torch.cuda.is_available():
        raise DisclosureError("--device cuda: torch finds no GPU here. Use --device cpu.")
    torch.set_num_threads(options.threads)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler tells of each start and stop
    return Settings(
        options.device,
        options.threads,
        options.rounds,
        options.seconds_per_way,
        options.step_limit,
        options.memory_fraction,
        options.seed,
    )


def console() -> Console:
    """As wide as the terminal; wide enough for the tables where there is none."""
    return Console(width=None if sys.stdout.isatty() else 180)
