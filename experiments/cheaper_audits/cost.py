"""What each audit costs, as a ratio to plain training, from interleaved blocks of steps in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from experiments.cheaper_audits.variants import Variant
from gradient_disclosure.callbacks.audit_schedule import AuditSchedule, StepCounter
from gradient_disclosure.callbacks.audited_layers import patterns_outside
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.ledger import DisclosureLedger, Exposure
from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.training.recipe import TrainingRecipe

BLOCK = 20
"""Steps in a block: every stride divides it, so a block holds BLOCK / n audited steps."""

Step = Callable[[], None]


def costs(recipe: TrainingRecipe, variants: Sequence[Variant], blocks: int) -> dict[str, Any]:
    """Time of a block with each audit over the time of a block without, round by round.

    A step is forward, backward, optimizer step, and where it is audited Gram, scores and ledger with bits. Each round
    times every audit and the plain step once, beginning with another one each time.

    Args:
        recipe: network, data, optimizer and batch size.
        variants: the audits.
        blocks: number of rounds.

    Returns:
        By name: median ratio and quartiles; under "plain" the milliseconds of a plain step.
    """
    torch.manual_seed(0)
    timed: dict[str, Step] = {"plain": _step(recipe, None), **{v.name: _step(recipe, v) for v in variants}}
    for step in timed.values():
        _block(step)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    names = list(timed)
    for number in range(blocks):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(_block(timed[name]))
    plain = np.array(seconds["plain"])
    found: dict[str, Any] = {
        name: _spread(np.array(values) / plain) for name, values in seconds.items() if name != "plain"
    }
    return {**found, "plain": {"milliseconds": round(1e3 * float(np.median(plain)) / BLOCK, 3), "rounds": blocks}}


def _spread(ratios: np.ndarray) -> dict[str, float]:
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return {"ratio": round(float(middle), 4), "ratio_low": round(float(low), 4), "ratio_high": round(float(high), 4)}


def _block(step: Step) -> float:
    started = time.perf_counter()
    for _ in range(BLOCK):
        step()
    return time.perf_counter() - started


def _step(recipe: TrainingRecipe, variant: Variant | None) -> Step:
    """One training step on one and the same batch, with a network of its own."""
    module = recipe.module().train()
    optimizer = recipe.optimizer(module.parameters())
    size = recipe.batch_size
    inputs, labels, ids = recipe.data.pool.inputs[:size], recipe.data.pool.labels[:size], torch.arange(size)

    def plain() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(inputs), labels).backward()
        optimizer.step()

    if variant is None:
        return plain
    counter = StepCounter(AuditSchedule(variant.every_n_steps))
    sampling = Sampling(rate=0.05)
    ledger = DisclosureLedger(Exposure(sampling, poisson=False), every_n_steps=variant.every_n_steps)
    outside = () if variant.layers is None else patterns_outside(module, variant.layers)
    scoring = recipe.audit.scoring

    def audited() -> None:
        ledger.begin_step()
        if counter.begin():
            optimizer.zero_grad()
            with GradientGram(module, exclude=outside, verify=False) as observed:
                F.cross_entropy(module(inputs), labels).backward()
                result = scoring.score(observed.gram(), sampling)
            ledger.record(ids, gnq=result.scores, squared_norms=result.squared_norms, step=0)
            optimizer.step()
        else:
            plain()
        counter.end()

    return audited
