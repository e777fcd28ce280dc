"""How a batch is scored: damping, scope and inverse, chosen by name."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.scores.gnq import Damping, GnqResult, gradient_uniqueness
from gradient_disclosure.scores.pinv import pseudo_inverse_uniqueness
from gradient_disclosure.scores.scope import DATASET, DATASET_HINT, SCOPES, Inverse

INVERSES: dict[str, Inverse] = {
    "damped": gradient_uniqueness,
    "pinv": lambda gram, damping: pseudo_inverse_uniqueness(gram),
}
"""Name → how the sum over the others is inverted."""

WITH_BITS = ("damped",)
"""Inverses whose scores have a meaning in bits: without noise (λ → 0) a difference of entropies is infinite."""


@dataclass(frozen=True)
class Scoring:
    """How a batch is scored.

    Attributes:
        damping: λ, in units of the sum over the scope; not used by the pseudo-inverse.
        scope: a key of ``SCOPES``. "batch": the sum over the batch, unscaled. "universe_proxy": an estimate of the sum
            over all N examples, which is what bits are computed from.
        inverse: a key of ``INVERSES``. "damped": (S + λI)⁻¹. "pinv": S⁺, which does not see what lies outside the span
            of the other gradients, and gives no bits.

    Example:
        >>> import torch
        >>> gram = torch.tensor([[4.0, 0.0], [0.0, 1.0]])
        >>> Scoring(Damping(0.5)).score(gram).scores.round(decimals=9).tolist()
        [8.0, 2.0]
        >>> proxy = Scoring(Damping(0.5), scope="universe_proxy").score(torch.ones(2, 2), Sampling(0.5, 0.5))
        >>> proxy.scores.round(decimals=9).tolist(), proxy.scope  # ¼ · 1 / (1 + 0.5 · ¼)
        ([0.222222222, 0.222222222], 'universe_proxy')
    """

    damping: Damping = field(default_factory=lambda: Damping(1e-2))
    scope: str = "batch"
    inverse: str = "damped"

    def __post_init__(self) -> None:
        for name, value, known in (("scope", self.scope, SCOPES), ("inverse", self.inverse, INVERSES)):
            if value not in known:
                hint = DATASET_HINT if (name, value) == ("scope", DATASET) else ""
                raise ValueError(f"unknown {name} {value!r}; known: {', '.join(known)}{hint}")

    @property
    def gives_bits(self) -> bool:
        """Whether the scores have a meaning in bits."""
        return self.inverse in WITH_BITS

    def score(self, gram: Tensor, sampling: Sampling | None = None) -> GnqResult:
        """Scores of a batch.

        Args:
            gram: (B, B) inner products of per-example gradients.
            sampling: r and q, needed by "universe_proxy".

        Returns:
            The scores, labeled with scope and inverse.

        Raises:
            IllConditionedGramError: ``gram`` is not positive semi-definite within the precision needed.
            NonFiniteGradientError: NaN or infinity in ``gram``.
            ValueError: not a square matrix, or no sampling where the scope needs it.
        """
        return SCOPES[self.scope].score(gram, self.damping.of(gram), INVERSES[self.inverse], sampling)
