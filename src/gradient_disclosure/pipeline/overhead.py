"""What the audit costs, as a ratio of step times measured in one process on interleaved steps."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from gradient_disclosure.callbacks.audited_layers import patterns_outside
from gradient_disclosure.gram.engine import GradientGram
from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.training.recipe import TrainingRecipe


def audit_overhead(recipe: TrainingRecipe, repetitions: int = 30) -> float:
    """Median time of an audited step over median time of a plain one: forward, backward, Gram, scores, optimizer step.

    With ``every_n_steps``, averaged over audited and other steps: 1 + (ratio − 1)/n.

    The model is fresh and thrown away; Lightning, the loader and the ledger are in neither of the two.
    """
    size = min(recipe.batch_size, len(recipe.data.pool))
    inputs, labels = recipe.data.pool.inputs[:size], recipe.data.pool.labels[:size]
    with torch.random.fork_rng():
        module = recipe.module().train()
    network, layers = module.network, recipe.audit.layers
    left_out = () if layers is None else patterns_outside(module, layers)
    optimizer = recipe.optimizer(network.parameters())
    any_sampling = Sampling(rate=1.0)  # its value costs nothing

    def plain() -> None:
        optimizer.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimizer.step()

    def audited() -> None:
        optimizer.zero_grad()
        with GradientGram(module, exclude=left_out, verify=False) as observed:
            F.cross_entropy(module(inputs), labels).backward()
            gram = observed.gram()
        recipe.audit.scoring.score(gram, any_sampling)
        optimizer.step()

    for _ in range(3):
        plain()
        audited()
    times = [(_seconds(plain), _seconds(audited)) for _ in range(repetitions)]
    ratio = statistics.median(t[1] for t in times) / statistics.median(t[0] for t in times)
    return 1.0 + (ratio - 1.0) / recipe.audit.every_n_steps


def _seconds(step: Callable[[], None]) -> float:
    started = time.perf_counter()
    step()
    return time.perf_counter() - started
