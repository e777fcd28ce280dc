"""What the sum in the definition of gradient uniqueness runs over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.scores.gnq import GnqResult, gradient_uniqueness

Inverse = Callable[[Tensor, float], GnqResult]
"""(Gram (B, B), λ in units of the batch) → scores of the batch."""


class Scope(Protocol):
    """How scores of the scope come from the Gram matrix of a batch, and what the bits take of them."""

    def score(self, gram: Tensor, damping: float, inverse: Inverse, sampling: Sampling | None) -> GnqResult:
        """Scores of a batch with Gram matrix ``gram`` (B, B), at λ = ``damping`` in units of the scope."""

    def in_universe_units(self, scores: Tensor, sampling: Sampling) -> Tensor:
        """The x of the bits, (B,), from scores of this scope."""


@dataclass(frozen=True)
class BatchScope:
    """The sum over the batch, unscaled, as in the seed paper's experiments."""

    def score(self, gram: Tensor, damping: float, inverse: Inverse, sampling: Sampling | None) -> GnqResult:
        """The scores of the batch as they are."""
        return inverse(gram, damping)

    def in_universe_units(self, scores: Tensor, sampling: Sampling) -> Tensor:
        """``p · GNQ_batch``: a batch stands for the universe as S_universe ≈ S_batch / p."""
        return scores * sampling.inclusion


@dataclass(frozen=True)
class UniverseProxyScope:
    """The sum over all N examples of the universe, for which the batch stands as S_universe ≈ S_batch / p."""

    def score(self, gram: Tensor, damping: float, inverse: Inverse, sampling: Sampling | None) -> GnqResult:
        """See :func:`universe_proxy`."""
        if sampling is None:
            raise ValueError("the scope 'universe_proxy' needs to know how often an example is drawn: give a Sampling")
        return universe_proxy(gram, damping, sampling, inverse)

    def in_universe_units(self, scores: Tensor, sampling: Sampling) -> Tensor:
        """The scores: they are in these units."""
        return scores


SCOPES: dict[str, Scope] = {"batch": BatchScope(), "universe_proxy": UniverseProxyScope()}
"""Name → scope of the scores of a batch."""

DATASET = "dataset"
"""Label of exact scores among all N examples: no key above, as they do not come from the Gram matrix of a batch."""

DATASET_HINT = (
    ". The exact sum over the whole data set is not a score of a batch but an audit of its own, of one state of the "
    "weights: python -m experiments.dataset_audit --run RUN_FOLDER (--help tells more), or "
    "gradient_disclosure.dataset_audit.audit_dataset."
)


def universe_proxy(
    gram: Tensor, damping: float, sampling: Sampling, inverse: Inverse = gradient_uniqueness
) -> GnqResult:
    """Estimate of gradient uniqueness among all N examples from one batch: ``p · GNQ_batch(λp)``, p = qr.

    From S_universe ≈ S_batch / p, a step of this project beyond the papers. It ranks well, but overestimates on average
    (the matrix inverse is operator-convex), the more the further the batch falls below the effective rank of the
    universe.

    Args:
        gram: (B, B) inner products of the batch's per-example gradients.
        damping: λ > 0 of the definition over the universe, in units of squared gradients: not multiplied by p.
        sampling: r and q.
        inverse: how the batch's own sum is inverted.

    Returns:
        The scores, with λ as given and the batch's own leverages.

    Raises:
        NonFiniteGradientError: NaN or infinity in ``gram``.
        ValueError: see :func:`gradient_uniqueness`.

    Example:
        >>> import torch
        >>> universe_proxy(torch.eye(2) * 3.0, 4.0, Sampling(rate=0.5, prior=0.5)).scores.tolist()  # ¼ · 3 / (4 · ¼)
        [0.75, 0.75]
    """
    p = sampling.inclusion
    batch = inverse(gram, damping * p)
    return replace(batch, scores=p * batch.scores, damping=batch.damping / p, scope="universe_proxy")
