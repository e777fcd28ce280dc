"""Reconstruction of training inputs from released gradients, and its scoring."""

from gradient_disclosure.attacks.reconstruction.attack import Reconstruction, ReconstructionAttack
from gradient_disclosure.attacks.reconstruction.dlg import DLG
from gradient_disclosure.attacks.reconstruction.gradient_matching import GradientMatching
from gradient_disclosure.attacks.reconstruction.idlg import IDLG
from gradient_disclosure.attacks.reconstruction.inverting_gradients import InvertingGradients
from gradient_disclosure.attacks.reconstruction.matching import match_to_originals
from gradient_disclosure.attacks.reconstruction.metrics import reconstruction_metrics
from gradient_disclosure.attacks.reconstruction.perceptual import PerceptualDistance
from gradient_disclosure.attacks.reconstruction.released import ReleasedGradient
from gradient_disclosure.attacks.reconstruction.victim import gradient_of_batch

__all__ = [
    "DLG",
    "IDLG",
    "GradientMatching",
    "InvertingGradients",
    "PerceptualDistance",
    "Reconstruction",
    "ReconstructionAttack",
    "ReleasedGradient",
    "gradient_of_batch",
    "match_to_originals",
    "reconstruction_metrics",
]
