"""Membership inference against the trained target."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from gradient_disclosure.attacks.membership.lira import lira_scores
from gradient_disclosure.attacks.membership.metrics import membership_metrics
from gradient_disclosure.attacks.membership.signals import cross_entropy, logit_scaled_confidence
from gradient_disclosure.attacks.membership.threshold import loss_threshold_scores
from gradient_disclosure.models.predict import predict_logits
from gradient_disclosure.reporting.record import Value
from gradient_disclosure.training.cohort import ShadowCohort
from gradient_disclosure.training.fit import TrainedModel
from gradient_disclosure.training.recipe import TrainingRecipe

ATTACKS = ("lira_online", "lira_offline", "loss_threshold")


def membership_scores(recipe: TrainingRecipe, target: TrainedModel, cohort: ShadowCohort | None) -> dict[str, Tensor]:
    """Scores (N,) of every example of the pool under each attack, higher meaning more like a member.

    The attacker sees the released model's logits; for LiRA also those of the shadow models. Without a cohort there is
    no LiRA.
    """
    pool = recipe.data.pool
    logits = predict_logits(target.module, pool.inputs)
    scores = {"loss_threshold": loss_threshold_scores(cross_entropy(logits, pool.labels))}
    if cohort is not None:
        signal = logit_scaled_confidence(logits, pool.labels)
        shadows = torch.stack([logit_scaled_confidence(each, pool.labels) for each in cohort.logits])
        for name, online in (("lira_online", True), ("lira_offline", False)):
            scores[name] = lira_scores(signal, shadows, cohort.membership, online=online, variance="pooled")
    return scores


def membership_results(
    scores: dict[str, Tensor], frame: pd.DataFrame, *, bootstrap: int, seed: int, on_attack: Callable[[], None]
) -> dict[str, Value]:
    """Flat results ``attack/<name>/...``: over all examples and, after a censor, over kept and censored members apart.

    Args:
        scores: by attack, each (N,) in the order of ``frame``.
        frame: columns ``member`` and ``censored_at_step``.
        bootstrap: resamples of each interval.
        seed: of the resampling.
        on_attack: called after each attack.
    """
    member = torch.from_numpy(frame["member"].to_numpy(dtype=bool).copy())
    censored = torch.from_numpy(frame["censored_at_step"].notna().to_numpy(dtype=bool).copy())
    results: dict[str, Value] = {}
    for name, score in scores.items():
        groups = {"": torch.ones_like(member)}
        if bool(censored.any()):
            groups |= {"kept/": ~(member & censored), "censored/": ~member | censored}
        for prefix, chosen in groups.items():
            if not bool(member[chosen].any()):
                continue  # every member was censored: nobody is left to be told from the others
            metrics = membership_metrics(score[chosen], member[chosen], bootstrap=bootstrap, seed=seed)
            results |= {f"attack/{name}/{prefix}{key}": value for key, value in metrics.to_flat().items()}
        on_attack()
    return results
