"""Pure functions of a Gram matrix: scores per example, and what they mean in bits."""

from gradient_disclosure.scores.bits import (
    AttackerCeiling,
    Sampling,
    attacker_ceiling,
    gaussian_bits,
    paper_bits,
    run_cap,
    step_cap,
)
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import Damping, GnqResult, gnq_scores, gradient_uniqueness
from gradient_disclosure.scores.pinv import pseudo_inverse_uniqueness
from gradient_disclosure.scores.scope import universe_proxy
from gradient_disclosure.scores.scoring import Scoring

__all__ = [
    "AttackerCeiling",
    "Damping",
    "GaussianMechanism",
    "GnqResult",
    "Sampling",
    "Scoring",
    "attacker_ceiling",
    "gaussian_bits",
    "gnq_scores",
    "gradient_uniqueness",
    "paper_bits",
    "pseudo_inverse_uniqueness",
    "run_cap",
    "step_cap",
    "universe_proxy",
]
