"""What the audit costs, as a ratio of step times measured in one process on interleaved steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.training.recipe import TrainingRecipe


def audit_overhead(recipe: TrainingRecipe, repetitions: int = 30) -> float:
    """Median time of an audited step over median time of a plain one: forward, backward, Gram, scores, optimizer step.

    The model is fresh and thrown away; Lightning, the loader and the ledger are in neither of the two.
    """
    size = min(recipe.batch_size, len(recipe.data.pool))
    inputs, labels = recipe.data.pool.inputs[:size], recipe.data.pool.labels[:size]
    with torch.random.fork_rng():
        network = recipe.network(recipe.data.spec).train()
    optimizer = recipe.optimizer(network.parameters())
    any_sampling = Sampling(rate=1.0)  # its value costs nothing

    def plain() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimizer.step()

    def audited() -> None:
        optimizer.zero_grad()
        with GradientGram(network, verify=False) as observed:
            F.cross_entropy(network(inputs), labels).backward()
            gram = observed.gram()
        recipe.audit.scoring.score(gram, any_sampling)
        optimizer.step()

    for _ in range(3):
        plain()
        audited()
    times = [(_seconds(plain), _seconds(audited)) for _ in range(repetitions)]
    return statistics.median(t[1] for t in times) / statistics.median(t[0] for t in times)


def _seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
