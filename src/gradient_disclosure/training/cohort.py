"""Shadow models: the same training, defense included, on other random halves of the pool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradient_disclosure.files import load_state, save_state
from gradient_disclosure.models.predict import predict_logits
from gradient_disclosure.training.batches import derived_seed
from gradient_disclosure.training.fit import FINISHED, train
from gradient_disclosure.training.recipe import TrainingRecipe, shadow_memberships


@dataclass(frozen=True)
class ShadowCohort:
    """What the shadow models say of every example of the pool.

    Attributes:
        logits: (n, N, C) float32.
        membership: (n, N) bool.
        seconds: wall time of the n trainings.
    """

    logits: Tensor
    membership: Tensor
    seconds: float


def train_cohort(
    recipe: TrainingRecipe, count: int, seed: int, folder: Path, on_model: Callable[[], None] | None = None
) -> ShadowCohort:
    """Train ``count`` shadow models one after the other; those that ``folder`` holds already are read back.

    Args:
        recipe: the target's recipe: an attacker who knows the defense trains with it.
        count: number of models, even.
        seed: of the splits and trainings.
        folder: one sub-folder a model.
        on_model: called after each model.

    Returns:
        Logits of the whole pool under each model, with its membership.

    Raises:
        ValueError: an odd or too small ``count``.
    """
    memberships = shadow_memberships(count, len(recipe.data.pool), seed)
    logits, seconds = [], 0.0
    for number in range(count):
        place = folder / f"{number:03d}"
        of_model, took = _shadow(recipe, memberships[number], derived_seed("shadow", seed, number), place)
        logits.append(of_model)
        seconds += took
        if on_model is not None:
            on_model()
    return ShadowCohort(torch.stack(logits), memberships, seconds)


def _shadow(recipe: TrainingRecipe, membership: Tensor, seed: int, folder: Path) -> tuple[Tensor, float]:
    """Logits (N, C) of the pool under one shadow model, and the seconds its training took."""
    stored = folder / "signals.pt"
    if stored.exists():
        state = load_state(stored)
        return state["logits"], state["seconds"]
    members = membership.nonzero().squeeze(1)
    trained = train(recipe, members, seed, folder)
    logits = predict_logits(trained.module, recipe.data.pool.inputs)
    save_state({"logits": logits, "seconds": trained.seconds}, stored)
    (folder / FINISHED).unlink()
    return logits, trained.seconds
