"""Gradient uniqueness by the pseudo-inverse: what the other gradients of the batch can express, and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from gradient_disclosure.errors import IllConditionedGramError
from gradient_disclosure.scores.gnq import GnqResult, checked_gram

CUTOFF = 1e-12
"""Eigenvalues of K up to this fraction of the largest count as zero, i.e. singular values of the gradients up to 1e-6.

K holds the squares of the singular values. What rounding leaves of a zero lies below: about B · 2e-16 of the largest in
float64, about (1e-7)² from float32 gradients. An eigenvalue of fraction f is known to about 2e-16/f of itself.
"""


def pseudo_inverse_uniqueness(gram: Tensor, cutoff: float = CUTOFF) -> GnqResult:
    """Gradient uniqueness with the pseudo-inverse in place of damping, exactly, from the batch's Gram matrix.

    ``GNQ_j = g_jᵀ (Σ_{k≠j} g_k g_kᵀ)⁺ g_j``, of Abdelghafar et al., "Quantifying Information Disclosure During Gradient
    Descent Using Gradient Uniqueness" (version 1). With G the other gradients as rows, G = UΣVᵀ and k_j = G g_j:
    ``(GᵀG)⁺ = VΣ⁻²Vᵀ`` and ``Vᵀg_j = Σ⁻¹Uᵀk_j``, so the score is ``‖Σ⁻²Uᵀk_j‖² = ‖(GGᵀ)⁺k_j‖²``: the squared norm of
    the shortest coefficients that express g_j by the others. One eigendecomposition of size B − 1 an example, so that
    an outlier does not set the cut-off at which the others are told from zero.

    It is the limit λ → 0 of the damped score only if g_j lies in the span of the others. Otherwise the damped score
    grows as dist²/λ, while this one does not see the part outside: a gradient orthogonal to all others scores 0.
    ``inside_span`` of the result says how much of each gradient was seen.

    Args:
        gram: (B, B) inner products K of per-example gradients; solved in float64.
        cutoff: eigenvalues up to this fraction of the largest are taken as zero.

    Returns:
        The scores, with λ = 0. B = 1 gives 0, nothing of it inside the span.

    Raises:
        IllConditionedGramError: K has an eigenvalue below ``−cutoff`` times the largest: it is not a Gram matrix, or
            not one in float64.
        NonFiniteGradientError: NaN or infinity in ``gram``; the rows are named.
        ValueError: not a square matrix, or a cut-off outside (0, 1).

    Example:
        >>> import torch
        >>> g = torch.tensor([[4.0, 3.0], [2.0, 0.0]])  # of the first, (4, 0) is twice the second
        >>> result = pseudo_inverse_uniqueness(g @ g.T)
        >>> [round(x, 9) for x in result.scores.tolist()], [round(x, 9) for x in result.inside_span.tolist()]
        ([4.0, 0.1024], [0.64, 0.64])
    """
    if not 0.0 < cutoff < 1.0:
        raise ValueError(f"the cut-off must lie in (0, 1), got {cutoff}")
    gram = checked_gram(gram)
    size, squared_norms = gram.shape[0], gram.diagonal().clone()
    values, vectors = torch.linalg.eigh(gram)
    if size and float(values[0]) < -cutoff * abs(float(values[-1])):
        raise IllConditionedGramError(
            f"K is not positive semi-definite: its eigenvalues run from {float(values[0]):.3g} to "
            f"{float(values[-1]):.3g}. It is not a Gram matrix, or was not computed in float64."
        )
    leverage = vectors[:, _above(values, cutoff)].square().sum(dim=1)
    scores, inside = torch.zeros_like(squared_norms), torch.ones_like(squared_norms)
    everyone = torch.arange(size, device=gram.device)
    for j in range(size):
        if squared_norms[j] > 0:
            others = everyone[everyone != j]
            score, projection = _from_others(gram[others][:, others], gram[others, j], cutoff)
            scores[j], inside[j] = score, projection / squared_norms[j]
    return GnqResult(scores, leverage, squared_norms, damping=0.0, inverse="pinv", inside_span=inside.clamp(max=1.0))


def _from_others(others: Tensor, products: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """Squared norms of the coefficients that express a gradient by others, and of its projection on their span."""
    values, vectors = torch.linalg.eigh(others)
    kept = _above(values, cutoff)
    along = vectors[:, kept].T @ products
    return (along / values[kept]).square().sum(), (along.square() / values[kept]).sum()


def _above(values: Tensor, cutoff: float) -> Tensor:
    """(B,) bool: which of the eigenvalues, in ascending order, are not zero."""
    return values > cutoff * values[-1:].clamp(min=0.0)
