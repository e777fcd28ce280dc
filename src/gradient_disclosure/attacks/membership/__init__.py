"""Membership inference: pure functions of signals and membership, usable without the rest of the package."""

from gradient_disclosure.attacks.membership.correlation import spearman_with_interval
from gradient_disclosure.attacks.membership.lira import lira_scores
from gradient_disclosure.attacks.membership.metrics import MembershipMetrics, TprAtFpr, membership_metrics
from gradient_disclosure.attacks.membership.roc import roc_points
from gradient_disclosure.attacks.membership.signals import cross_entropy, logit_scaled_confidence
from gradient_disclosure.attacks.membership.threshold import loss_threshold_scores

__all__ = [
    "MembershipMetrics",
    "TprAtFpr",
    "cross_entropy",
    "lira_scores",
    "logit_scaled_confidence",
    "loss_threshold_scores",
    "membership_metrics",
    "roc_points",
    "spearman_with_interval",
]
