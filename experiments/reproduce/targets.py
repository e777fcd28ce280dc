"""What a cohort says of its models as targets: utility, attack success, disclosure, one number a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gradient_disclosure.attacks.membership import lira_scores, logit_scaled_confidence, membership_metrics
from gradient_disclosure.attacks.membership.in_turn import scores_in_turn

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Targets:
    """The models of a cohort; models 2k and 2k + 1 have complementary members.

    Attributes:
        logits: (n, N, C) of the pool.
        labels: (N,) int64.
        membership: (n, N) bool: given to the training, censored or not.
        censored: (n, N) bool: given, and dropped by the defense.
        test_logits: (n, M, C).
        test_labels: (M,) int64.
    """

    logits: Tensor
    labels: Tensor
    membership: Tensor
    censored: Tensor
    test_logits: Tensor
    test_labels: Tensor

    @property
    def confidences(self) -> Tensor:
        """(n, N) float64, the signal of LiRA."""
        return torch.stack([logit_scaled_confidence(each, self.labels) for each in self.logits])

    def lira(self, *, online: bool = True) -> Tensor:
        """(n, N) scores with each model as target in turn."""
        attack = partial(lira_scores, online=online, variance="pooled")
        return scores_in_turn(self.confidences, self.membership, attack)


def utility(targets: Targets) -> dict[str, Numbers]:
    """Accuracy on the test set, over all classes and in the worst one, (n,) each."""
    right = targets.test_logits.argmax(dim=2) == targets.test_labels
    classes = targets.test_labels.unique()
    by_class = torch.stack([right[:, targets.test_labels == c].double().mean(dim=1) for c in classes], dim=1)
    return {
        "test_accuracy": right.double().mean(dim=1).numpy(),
        "worst_class_accuracy": by_class.min(dim=1).values.numpy(),
    }


def attack_success(targets: Targets, scores: Tensor) -> dict[str, Numbers]:
    """AUC and true positive rate at 1 % false positives, (n,) each: over all, kept and censored members apart.

    Args:
        targets: the cohort.
        scores: (n, N) of an attack with each model as target.
    """
    found: dict[str, list[float]] = {}
    for i, score in enumerate(scores):
        member, censored = targets.membership[i], targets.censored[i]
        groups = {"": member | ~member, "kept_": ~censored, "censored_": ~member | censored}
        for prefix, chosen in groups.items():
            auc = tpr = float("nan")
            if bool(member[chosen].any()) and not bool(member[chosen].all()):
                metrics = membership_metrics(score[chosen], member[chosen], bootstrap=1)
                at_one_percent = metrics.to_flat()["tpr_at_1pct_fpr"]
                auc, tpr = metrics.auc, float("nan") if at_one_percent is None else at_one_percent
            found.setdefault(f"{prefix}auc", []).append(auc)
            found.setdefault(f"{prefix}tpr_at_1pct_fpr", []).append(tpr)
    return {name: np.asarray(values) for name, values in found.items()}


def pooled_tpr(targets: Targets, scores: Tensor, limit: float) -> float | None:
    """True positive rate at a low false positive rate, with the scores of all targets in one ROC.

    One threshold for all targets; n·N/2 non-members resolve a rate that one target's N/2 cannot. None where even they
    cannot.
    """
    metrics = membership_metrics(scores.flatten(), targets.membership.flatten(), bootstrap=1)
    return next((rate.tpr for rate in metrics.tpr_at_fpr if rate.fpr_limit == limit), None)


def columns_of(parts: Iterable[Mapping[str, Numbers]]) -> dict[str, Numbers]:
    """All columns side by side; a name that occurs twice is an error."""
    joined: dict[str, Numbers] = {}
    for part in parts:
        twice = joined.keys() & part.keys()
        if twice:
            raise ValueError(f"columns {sorted(twice)} are given twice")
        joined |= part
    return joined
