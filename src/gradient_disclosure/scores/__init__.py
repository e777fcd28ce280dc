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

__all__ = [
    "AttackerCeiling",
    "Damping",
    "GaussianMechanism",
    "GnqResult",
    "Sampling",
    "attacker_ceiling",
    "gaussian_bits",
    "gnq_scores",
    "gradient_uniqueness",
    "paper_bits",
    "run_cap",
    "step_cap",
]
