from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradient_disclosure.errors import IllConditionedGramError, NonFiniteGradientError
from gradient_disclosure.scores.gnq import gnq_scores
from gradient_disclosure.scores.pinv import CUTOFF, pseudo_inverse_uniqueness


def literal(gradients: Tensor) -> tuple[Tensor, Tensor]:
    """The definition with numpy's pseudo-inverse of the d×d sum, and each gradient's share inside the others' span."""
    g = gradients.double().numpy()
    scores, shares = [], []
    for j in range(len(g)):
        others = np.delete(g, j, axis=0)
        inverse = np.linalg.pinv(others.T @ others, rcond=CUTOFF, hermitian=True)
        scores.append(g[j] @ inverse @ g[j])
        residual = g[j] - np.linalg.pinv(others, rcond=CUTOFF**0.5) @ others @ g[j]
        shares.append(1.0 - residual @ residual / (g[j] @ g[j]))
    return torch.tensor(scores, dtype=torch.float64), torch.tensor(shares, dtype=torch.float64)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(2, 10),
    dimension=st.integers(1, 14),
    rank=st.integers(1, 14),
    seed=st.integers(0, 1000),
    log_scale=st.floats(-3, 3),
)
def test_equals_the_pseudo_inverse_of_the_literal_sum(
    batch: int, dimension: int, rank: int, seed: int, log_scale: float
) -> None:
    """Fewer or more examples than dimensions, and gradients that fill a subspace only."""
    generator = torch.Generator().manual_seed(seed)
    rank = min(rank, dimension)
    inside = torch.randn(batch, rank, generator=generator, dtype=torch.float64)
    basis = torch.linalg.qr(torch.randn(dimension, rank, generator=generator, dtype=torch.float64)).Q
    gradients = inside @ basis.T * 10**log_scale
    result = pseudo_inverse_uniqueness(gradients @ gradients.T)
    scores, shares = literal(gradients)
    assert result.inside_span is not None
    torch.testing.assert_close(result.scores, scores, rtol=1e-5, atol=1e-12)
    torch.testing.assert_close(result.inside_span, shares, rtol=0, atol=1e-7)
    assert result.effective_rank == pytest.approx(min(batch, rank), abs=1e-6)
    assert (result.damping, result.relative_damping, result.inverse, result.scope) == (0.0, 0.0, "pinv", "batch")


def test_closed_form_and_scales() -> None:
    """Orthogonal others of norms a_i: Σ (g·a_i)² / a_i⁴. Ten times the one gradient is a hundred times its score."""
    others = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    g = torch.tensor([3.0, 2.0, 8.0], dtype=torch.float64)
    rows = torch.cat([g[None], others])
    result = pseudo_inverse_uniqueness(rows @ rows.T)
    assert float(result.scores[0]) == pytest.approx(9.0 + 1.0 + 4.0)
    rows[0] *= 1e7  # an outlier must not make the others look like zero
    assert float(pseudo_inverse_uniqueness(rows @ rows.T).scores[0]) == pytest.approx(14.0e14)
    torch.testing.assert_close(pseudo_inverse_uniqueness(rows @ rows.T * 1e-30).scores[0], result.scores[0] * 1e14)


def test_five_points_in_twenty_dimensions() -> None:
    """The damped score grows as dist²/λ; the pseudo-inverse sees only what lies inside the span, and says how much."""
    torch.manual_seed(0)
    g = torch.randn(5, 20, dtype=torch.float64)
    result = pseudo_inverse_uniqueness(g @ g.T)
    assert result.inside_span is not None
    assert 0.01 < float(result.scores[0]) < 1.0
    outside = (1.0 - result.inside_span) * result.squared_norms
    for damping in (1e-4, 1e-6, 1e-8):
        torch.testing.assert_close(gnq_scores(g @ g.T, damping) * damping, outside, rtol=10 * damping, atol=0)


def test_it_is_the_limit_of_the_damped_score_inside_the_span() -> None:
    torch.manual_seed(0)
    g = torch.randn(9, 4, dtype=torch.float64)
    result = pseudo_inverse_uniqueness(g @ g.T)
    torch.testing.assert_close(result.scores, gnq_scores(g @ g.T, 1e-7), rtol=1e-6, atol=0)
    torch.testing.assert_close(result.inside_span, torch.ones(9, dtype=torch.float64))
    torch.testing.assert_close(result.leverage / (1.0 - result.leverage), result.scores)


@pytest.mark.parametrize("log_condition", [0, 2, 4])
def test_the_squared_condition_number_costs_what_the_cut_off_says(log_condition: int) -> None:
    """Against least squares on the gradients themselves, which squares nothing."""
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(n, 6, dtype=torch.float64)).Q for n in (8, 30))
    g = left * torch.logspace(0, -log_condition, 6, dtype=torch.float64) @ right.T
    expected = [
        float(np.square(np.linalg.lstsq(np.delete(g.numpy(), j, 0).T, g[j].numpy(), rcond=1e-9)[0]).sum())
        for j in range(8)
    ]
    got = pseudo_inverse_uniqueness(g @ g.T).scores
    tolerance = 100 * 2e-16 * 10 ** (2 * log_condition)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=max(tolerance, 1e-12), atol=0)


def test_the_rounding_of_float32_gradients_is_no_direction() -> None:
    """Twins that differ in the last digit are one direction, not two."""
    torch.manual_seed(0)
    g = torch.randn(6, 50)
    twins = torch.cat([g, g[:2] * (1 + 1e-7 * torch.randn(2, 50))]).double()
    exact = torch.cat([g, g[:2]]).double()
    torch.testing.assert_close(
        pseudo_inverse_uniqueness(twins @ twins.T).scores,
        pseudo_inverse_uniqueness(exact @ exact.T).scores,
        rtol=1e-5,
        atol=1e-6,
    )


def test_edge_cases() -> None:
    empty = pseudo_inverse_uniqueness(torch.zeros(0, 0))
    assert (empty.scores.shape, empty.effective_rank) == ((0,), 0.0)
    alone = pseudo_inverse_uniqueness(torch.tensor([[6.0]]))
    assert alone.inside_span is not None
    assert (alone.scores.tolist(), alone.inside_span.tolist(), alone.effective_rank) == ([0.0], [0.0], 1.0)
    with_zero = pseudo_inverse_uniqueness(torch.tensor([[0.0, 0.0], [0.0, 4.0]]))
    assert with_zero.inside_span is not None
    assert (with_zero.scores.tolist(), with_zero.inside_span.tolist()) == ([0.0, 0.0], [1.0, 0.0])
    assert pseudo_inverse_uniqueness(torch.ones(3, 3)).scores.tolist() == pytest.approx([0.5] * 3)


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(IllConditionedGramError, match=r"eigenvalues run from -1 to 3"):
        pseudo_inverse_uniqueness(torch.tensor([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(IllConditionedGramError, match="not positive semi-definite"):
        pseudo_inverse_uniqueness(-torch.eye(2))
    with pytest.raises(NonFiniteGradientError, match=r"batch positions \[1\]"):
        pseudo_inverse_uniqueness(torch.diag(torch.tensor([1.0, float("inf")])))
    with pytest.raises(ValueError, match="square"):
        pseudo_inverse_uniqueness(torch.ones(2, 3))
    for cutoff in (0.0, 1.0):
        with pytest.raises(ValueError, match="cut-off"):
            pseudo_inverse_uniqueness(torch.eye(2), cutoff)
