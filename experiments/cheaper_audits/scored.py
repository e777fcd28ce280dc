"""Per-member scores of one audit of one training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.cheaper_audits.variants import Variant
from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.training.fit import TrainedModel, Watch, train
from gradient_disclosure.training.recipe import TrainingRecipe, target_members


@dataclass(frozen=True)
class Scores:
    """What an audit says of the members, each (n,) float64 in the order of their indices.

    Attributes:
        gnq_total: the ledger's total; 0 for a member in no audited step.
        gnq_per_draw: its mean over the audited draws; NaN for a member in no audited step.
        bits: bits_gaussian_uncapped; 0 for a member in no audited step.
        squared_norm_total: the baseline, as the total.
        coverage: fraction of the parameters in the scores.
        weights: every weight of the trained model in one vector.
    """

    gnq_total: np.ndarray
    gnq_per_draw: np.ndarray
    bits: np.ndarray
    squared_norm_total: np.ndarray
    coverage: float
    weights: Tensor


def scores(recipe: TrainingRecipe, variant: Variant, seed: int, folder: Path) -> Scores:
    """Train with the audit in the run, or read back what ``folder`` holds.

    Args:
        recipe: how to train.
        variant: which steps and parameters are audited.
        seed: of the training.
        folder: of this training alone.
    """
    members = target_members(len(recipe.data.pool), recipe.audit.membership_prior, seed)
    audited = replace(recipe, audit=variant.settings(recipe.audit))
    trained = train(audited, members, seed, folder, Watch(audited=True))
    assert trained.ledger is not None
    frame = trained.ledger.to_frame().set_index("index").reindex(members.tolist())
    per_draw = frame["gnq_total"] / frame["n_drawn"] / variant.every_n_steps
    return Scores(
        frame["gnq_total"].fillna(0.0).to_numpy(),
        per_draw.to_numpy(),
        frame["bits_gaussian_uncapped"].fillna(0.0).to_numpy(),
        frame["squared_norm_total"].fillna(0.0).to_numpy(),
        trained.ledger.coverage,
        _weights(trained),
    )


def refuse_another_trajectory(full: Scores, other: Scores, name: str) -> None:
    """Raise if two audits did not see one and the same training."""
    if not torch.equal(full.weights, other.weights):
        raise DisclosureError(
            f"the audit {name} saw another training than the full audit: an audit must not change training. The "
            "comparison would be of two trainings."
        )


def _weights(trained: TrainedModel) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trained.module.parameters()])
