from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradient_disclosure import gnq_scores
from gradient_disclosure.errors import NonFiniteGradientError
from gradient_disclosure.gram.reference import leave_one_out_gnq
from gradient_disclosure.scores.gnq import Damping, gradient_uniqueness


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 12),
    dimension=st.integers(1, 20),
    log_damping=st.floats(-4, 4),
    seed=st.integers(0, 1000),
    log_scale=st.floats(-2, 2),
)
def test_equals_the_leave_one_out_definition(
    batch: int, dimension: int, log_damping: float, seed: int, log_scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    gradients = torch.randn(batch, dimension, generator=generator, dtype=torch.float64) * 10**log_scale
    damping = 10**log_damping
    expected = leave_one_out_gnq(gradients, damping)
    torch.testing.assert_close(gnq_scores(gradients @ gradients.T, damping), expected, rtol=1e-6, atol=0)


def exact(gradients: list[list[int]], damping: float) -> list[float]:
    """The definition in exact rational arithmetic, by Sherman–Morrison-free Gaussian elimination."""
    from fractions import Fraction

    rows = [[Fraction(x) for x in g] for g in gradients]
    lam = Fraction(damping)
    d = len(rows[0])
    scores = []
    for j, g in enumerate(rows):
        m = [
            [sum((r[a] * r[b] for k, r in enumerate(rows) if k != j), Fraction(0)) for b in range(d)] for a in range(d)
        ]
        for a in range(d):
            m[a][a] += lam
        augmented = [[*row, g[a]] for a, row in enumerate(m)]
        for a in range(d):
            pivot = augmented[a][a]
            augmented[a] = [x / pivot for x in augmented[a]]
            for b in range(d):
                if b != a:
                    factor = augmented[b][a]
                    augmented[b] = [x - factor * y for x, y in zip(augmented[b], augmented[a], strict=True)]
        scores.append(float(sum(x * row[-1] for x, row in zip(g, augmented, strict=True))))
    return scores


@pytest.mark.parametrize("damping", [2.0**-40, 2.0**-20, 1.0, 2.0**30, 2.0**50])
def test_no_cancellation_at_either_end(damping: float) -> None:
    """Public code clamps leverages near 1 and cancels near 0; rational arithmetic is the witness for both."""
    gradients = [[3, 0, 1], [0, 2, 0]]
    expected = torch.tensor(exact(gradients, damping), dtype=torch.float64)
    g = torch.tensor(gradients, dtype=torch.float64)
    torch.testing.assert_close(gnq_scores(g @ g.T, damping), expected, rtol=1e-12, atol=0)


def test_edge_cases() -> None:
    assert gnq_scores(torch.zeros(0, 0), 1.0).shape == (0,)
    assert gnq_scores(torch.tensor([[6.0]]), 2.0).tolist() == pytest.approx([3.0])
    assert gnq_scores(torch.tensor([[0.0, 0.0], [0.0, 4.0]]), 2.0).tolist() == pytest.approx([0.0, 2.0])
    duplicates = gnq_scores(torch.ones(3, 3) * 1e6, 1e-2)
    assert float(duplicates.max()) == pytest.approx(0.5, rel=1e-6)


def test_invariant_under_permutation_and_scale() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(9, 5, dtype=torch.float64)
    gram = gradients @ gradients.T
    order = torch.randperm(9)
    torch.testing.assert_close(gnq_scores(gram[order][:, order], 0.1), gnq_scores(gram, 0.1)[order])
    torch.testing.assert_close(gnq_scores(gram * 49.0, 0.1 * 49.0), gnq_scores(gram, 0.1))
    relative = Damping(0.3, "relative")
    torch.testing.assert_close(gnq_scores(gram * 49.0, relative.of(gram * 49.0)), gnq_scores(gram, relative.of(gram)))


def test_leverage_and_effective_rank() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(8, 3, dtype=torch.float64)
    result = gradient_uniqueness(gradients @ gradients.T, 1e-9)
    assert result.effective_rank == pytest.approx(3.0, abs=1e-5)
    singular = torch.linalg.svdvals(gradients)
    damped = gradient_uniqueness(gradients @ gradients.T, 0.7)
    assert damped.effective_rank == pytest.approx(float((singular**2 / (singular**2 + 0.7)).sum()))
    torch.testing.assert_close(damped.leverage / (1 - damped.leverage), damped.scores)
    torch.testing.assert_close(damped.squared_norms, gradients.square().sum(dim=1))
    assert damped.relative_damping == pytest.approx(0.7 / float(gradients.square().sum(dim=1).mean()))


def test_large_damping_ranks_as_the_norm() -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 4, dtype=torch.float64)
    gram = gradients @ gradients.T
    torch.testing.assert_close(gnq_scores(gram, 1e12) * 1e12, gram.diagonal(), rtol=1e-9, atol=0)


def test_bad_input_is_refused_by_name() -> None:
    gram = torch.eye(4)
    gram[2, 2] = float("nan")
    with pytest.raises(NonFiniteGradientError, match=r"batch positions \[2\]"):
        gnq_scores(gram, 1.0)
    with pytest.raises(ValueError, match="damping must be positive"):
        gnq_scores(torch.eye(2), 0.0)
    with pytest.raises(ValueError, match="square"):
        gnq_scores(torch.ones(2, 3), 1.0)
    with pytest.raises(ValueError, match="not positive definite"):
        gnq_scores(-torch.eye(2), 0.5)
    with pytest.raises(ValueError, match="kind"):
        Damping(1.0, "some")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        Damping(-1.0)
