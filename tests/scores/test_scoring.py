from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.scores.gnq import Damping, gradient_uniqueness
from gradient_disclosure.scores.pinv import pseudo_inverse_uniqueness
from gradient_disclosure.scores.scope import SCOPES
from gradient_disclosure.scores.scoring import INVERSES, Scoring

SAMPLING = Sampling(0.2, 0.4)


@settings(max_examples=60, deadline=None)
@given(
    scope=st.sampled_from(list(SCOPES)),
    inverse=st.sampled_from(list(INVERSES)),
    kind=st.sampled_from(["absolute", "relative"]),
    batch=st.integers(1, 9),
    dimension=st.integers(1, 9),
    seed=st.integers(0, 1000),
    log_scale=st.floats(-4, 4),
)
def test_scores_follow_a_permutation_and_not_the_scale_of_the_loss(
    scope: str, inverse: str, kind: str, batch: int, dimension: int, seed: int, log_scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(batch, dimension, generator=generator, dtype=torch.float64)
    order = torch.randperm(batch, generator=generator)
    s = 10**log_scale

    def scores(gradients: torch.Tensor, value: float) -> torch.Tensor:
        scoring = Scoring(Damping(value, kind), scope, inverse)  # type: ignore[arg-type]
        return scoring.score(gradients @ gradients.T, SAMPLING).scores

    plain = scores(g, 0.3)
    torch.testing.assert_close(scores(g * s, 0.3 * s**2 if kind == "absolute" else 0.3), plain, rtol=1e-6, atol=1e-12)
    torch.testing.assert_close(scores(g[order], 0.3), plain[order], rtol=1e-6, atol=1e-12)


def test_an_absolute_damping_is_no_relative_one() -> None:
    """Without λ by its square the score does change: the test above could fail."""
    gram = torch.tensor([[4.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    fixed = Scoring(Damping(0.3))
    assert not torch.allclose(fixed.score(gram * 49.0).scores, fixed.score(gram).scores, rtol=0.1)


def test_names_lead_to_the_functions() -> None:
    torch.manual_seed(0)
    g = torch.randn(6, 4, dtype=torch.float64)
    gram = g @ g.T
    default = Scoring().score(gram)
    assert torch.equal(default.scores, gradient_uniqueness(gram, 1e-2).scores)
    assert (default.scope, default.inverse, default.damping) == ("batch", "damped", 1e-2)
    pinv = Scoring(inverse="pinv").score(gram)
    assert torch.equal(pinv.scores, pseudo_inverse_uniqueness(gram).scores)
    both = Scoring(scope="universe_proxy", inverse="pinv").score(gram, SAMPLING)
    torch.testing.assert_close(both.scores, pinv.scores * 0.08)
    assert [Scoring(inverse=name).gives_bits for name in INVERSES] == [True, False]


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown scope 'dataset'; known: batch, universe_proxy"):
        Scoring(scope="dataset")
    with pytest.raises(ValueError, match=r"unknown inverse 'cholesky'; known: damped, pinv"):
        Scoring(inverse="cholesky")
    with pytest.raises(ValueError, match="how often an example is drawn"):
        Scoring(scope="universe_proxy").score(torch.eye(2))


def test_the_exact_scope_is_refused_with_the_command_that_gives_it() -> None:
    with pytest.raises(ValueError, match=r"python -m experiments\.dataset_audit --run RUN_FOLDER"):
        Scoring(scope="dataset")
    with pytest.raises(ValueError, match=r"known: batch, universe_proxy$"):
        Scoring(scope="datasets")
