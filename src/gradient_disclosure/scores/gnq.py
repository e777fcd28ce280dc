"""Gradient uniqueness: how far an example's gradient stands out from those of the others in its batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gradient_disclosure.errors import IllConditionedGramError, NonFiniteGradientError

SMALL_LEVERAGE = 1e-3
"""Below this leverage 1/(λM_jj) − 1 cancels; (KM)_jj/(λM_jj) is the same number without the cancellation."""


@dataclass(frozen=True)
class Damping:
    """The λ of the definition, in units of the sum that it is added to: that of the batch, or of another scope.

    Attributes:
        value: λ itself, or α.
        kind: "absolute": λ = value, what the bound in bits needs. "relative": λ = value · mean(diag K), free of the
            gradients' scale, so that scores of different models can be compared.

    Example:
        >>> import torch
        >>> Damping(0.5, "relative").of(torch.eye(3) * 4)
        2.0
    """

    value: float
    kind: Literal["absolute", "relative"] = "absolute"

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise ValueError(f"damping must be a number, got {self.value!r}")
        if not 0.0 < self.value < float("inf"):
            raise ValueError(f"damping must be positive and finite, got {self.value}")
        if self.kind not in ("absolute", "relative"):
            raise ValueError(f"damping kind must be 'absolute' or 'relative', got {self.kind!r}")

    def of(self, gram: Tensor) -> float:
        """λ for a batch with this Gram matrix (B, B); ``value`` itself where the mean squared norm is 0 or B = 0."""
        if self.kind == "absolute" or gram.shape[0] == 0:
            return self.value
        scale = float(gram.diagonal().mean())
        return self.value * scale if scale > 0 else self.value


@dataclass(frozen=True)
class GnqResult:
    """Gradient uniqueness of one batch with what a reader needs beside it.

    Attributes:
        scores: (B,) float64, GNQ_j ≥ 0.
        leverage: (B,) float64, h_j = 1 − λ M_jj in [0, 1), λ in units of the batch; their sum is the effective rank of
            the batch. By pseudo-inverse their limits at λ → 0; the sum is then the rank.
        squared_norms: (B,) float64, K_jj. As λ → ∞, GNQ → K_jj/λ, so a score says more than the norm only if λ is not
            large against it.
        damping: the λ used, in units of the scope; 0 by pseudo-inverse.
        scope: a key of ``SCOPES``, or "dataset": what the definition's sum runs over.
        inverse: a key of ``INVERSES``: how the sum was inverted.
        inside_span: (B,) float64 in [0, 1], by pseudo-inverse only: the part of ‖g_j‖² inside the span of the other
            gradients. The score does not see the rest.
    """

    scores: Tensor
    leverage: Tensor
    squared_norms: Tensor
    damping: float
    scope: str = "batch"
    inverse: str = "damped"
    inside_span: Tensor | None = None

    @property
    def relative_damping(self) -> float:
        """λ / mean(diag K); infinite for a batch of zero gradients, NaN for an empty batch."""
        if self.squared_norms.numel() == 0:
            return float("nan")
        mean = float(self.squared_norms.mean())
        return self.damping / mean if mean > 0 else float("inf")

    @property
    def effective_rank(self) -> float:
        """Σ_j h_j, between 0 and B."""
        return float(self.leverage.sum())


def gnq_scores(gram: Tensor, damping: float) -> Tensor:
    """Gradient uniqueness of each example of a batch, exactly, from the batch's Gram matrix.

    ``GNQ_j = g_jᵀ (Σ_{k≠j} g_k g_kᵀ + λI)⁻¹ g_j = 1/(λ M_jj) − 1`` with ``M = (K + λI)⁻¹``: the leave-one-out
    definition of Abdelghafar et al., "Quantifying Information Disclosure During Gradient Descent Using Gradient
    Uniqueness", in batch space. No d×d matrix is formed and nothing is clamped.

    Args:
        gram: (B, B) inner products K of per-example gradients; solved in float64.
        damping: λ > 0, in units of ``gram``.

    Returns:
        (B,) float64. B = 0 gives an empty result, B = 1 gives K/λ, a zero gradient gives 0.

    Raises:
        NonFiniteGradientError: NaN or infinity in ``gram``; the rows are named.
        IllConditionedGramError: K + λI is not positive definite in float64.
        ValueError: not a square matrix, or λ not positive.

    Example:
        >>> import torch
        >>> gnq_scores(torch.tensor([[4.0, 0.0], [0.0, 1.0]]), damping=0.5).round(decimals=9).tolist()
        [8.0, 2.0]
    """
    return gradient_uniqueness(gram, damping).scores


def gradient_uniqueness(gram: Tensor, damping: float) -> GnqResult:
    """:func:`gnq_scores` together with leverages, squared norms and the λ used.

    Args:
        gram: (B, B) inner products of per-example gradients.
        damping: λ > 0.

    Returns:
        The scores and what is logged beside them.

    Raises:
        NonFiniteGradientError: NaN or infinity in ``gram``.
        ValueError: see :func:`gnq_scores`.

    Example:
        >>> import torch
        >>> round(gradient_uniqueness(torch.ones(3, 3), damping=1.0).effective_rank, 9)
        0.75
    """
    if not 0.0 < damping < float("inf"):
        raise ValueError(f"damping must be positive and finite, got {damping}")
    gram = checked_gram(gram)
    identity = torch.eye(gram.shape[0], dtype=torch.float64, device=gram.device)
    factor, failed = torch.linalg.cholesky_ex(gram + damping * identity)
    if failed.item():
        raise IllConditionedGramError(
            f"K + λI is not positive definite at λ = {damping:.3g} (mean of diag K: "
            f"{float(gram.diagonal().mean()):.3g}): the "
            "Gram matrix is not symmetric positive semi-definite to within λ. Raise the damping or compute K in "
            "float64."
        )
    inverse_factor = torch.linalg.solve_triangular(factor, identity, upper=False)
    inverse_diagonal = inverse_factor.square().sum(dim=0)
    leverage = (gram * (inverse_factor.T @ inverse_factor)).sum(dim=1)
    scores = scores_of_leverage(leverage, damping * inverse_diagonal)
    return GnqResult(scores, leverage.clamp(min=0.0), gram.diagonal().clone(), damping)


def scores_of_leverage(leverage: Tensor, rest: Tensor) -> Tensor:
    """GNQ from both h and 1 − h, by whichever does not cancel.

    Args:
        leverage: (B,) h_j, computed without a difference from 1.
        rest: (B,) ``λ M_jj = 1 − h_j``, computed without a difference from 1.

    Returns:
        (B,) ``1/(λ M_jj) − 1``, at least 0.

    Example:
        >>> import torch
        >>> scores_of_leverage(torch.tensor([0.75, 1e-12]), torch.tensor([0.25, 1.0])).tolist()
        [3.0, 9.999999960041972e-13]
    """
    small = (leverage / rest).clamp(min=0.0)
    return torch.where(leverage < SMALL_LEVERAGE, small, 1.0 / rest - 1.0)


def checked_gram(gram: Tensor) -> Tensor:
    """The Gram matrix in float64, detached.

    Raises:
        NonFiniteGradientError: NaN or infinity; the rows are named.
        ValueError: not a square matrix.
    """
    if gram.dim() != 2 or gram.shape[0] != gram.shape[1]:
        raise ValueError(f"the Gram matrix must be square, got shape {tuple(gram.shape)}")
    gram = gram.detach().double()
    refuse_non_finite(gram)
    return gram


def refuse_non_finite(gram: Tensor) -> None:
    """Raise if a Gram matrix holds NaN or infinity, naming the rows whose own squared norm is not finite."""
    if bool(torch.isfinite(gram).all()):
        return
    rows = torch.nonzero(~torch.isfinite(gram.diagonal())).flatten().tolist()
    named = rows if rows else torch.nonzero(~torch.isfinite(gram).all(dim=1)).flatten().tolist()
    raise NonFiniteGradientError(f"NaN or infinity in the Gram matrix, from the examples at batch positions {named}")
