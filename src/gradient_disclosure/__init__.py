"""How much does training disclose about each example? Measure it in-run, attack it, limit it, and compare.

The names below are the public interface. They are imported when first used, so that ``GradientGram`` needs torch alone
and ``GradientUniqueness`` needs torch and lightning, but never opacus, lpips, wandb or hydra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradient_disclosure.callbacks.gradient_uniqueness import GradientUniqueness
    from gradient_disclosure.gram.engine import GradientGram
    from gradient_disclosure.gram.registry import register_gram_terms
    from gradient_disclosure.ledger import DisclosureLedger, Exposure
    from gradient_disclosure.scores.bits import Sampling, attacker_ceiling
    from gradient_disclosure.scores.gnq import Damping, gnq_scores

__version__ = "0.1.0"

_HOME = {
    "Damping": "scores.gnq",
    "DisclosureLedger": "ledger",
    "Exposure": "ledger",
    "GradientGram": "gram.engine",
    "GradientUniqueness": "callbacks.gradient_uniqueness",
    "Sampling": "scores.bits",
    "attacker_ceiling": "scores.bits",
    "gnq_scores": "scores.gnq",
    "register_gram_terms": "gram.registry",
}

__all__ = [
    "Damping",
    "DisclosureLedger",
    "Exposure",
    "GradientGram",
    "GradientUniqueness",
    "Sampling",
    "attacker_ceiling",
    "gnq_scores",
    "register_gram_terms",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
