from __future__ import annotations

import pytest
import torch
from scipy.stats import kstest

from gradient_disclosure.attacks.reconstruction.initialization import (
    Initialization,
    NormalInitialization,
    UniformInitialization,
)


@pytest.mark.parametrize(
    ("initialization", "distribution", "arguments"),
    [
        (NormalInitialization(), "norm", (0, 1)),
        (NormalInitialization(0.1), "norm", (0, 0.1)),
        (UniformInitialization(), "uniform", (-1, 2)),
    ],
)
def test_draws_follow_their_distribution(
    initialization: Initialization, distribution: str, arguments: tuple[float, float]
) -> None:
    draws = initialization((5000,), torch.Generator().manual_seed(0))
    assert draws.dtype == torch.float64
    assert kstest(draws, distribution, arguments).pvalue > 0.01


def test_the_generator_alone_decides() -> None:
    before = torch.get_rng_state()
    first, second = (UniformInitialization()((4,), torch.Generator().manual_seed(s)) for s in (0, 0))
    assert torch.equal(first, second)
    assert not torch.equal(first, UniformInitialization()((4,), torch.Generator().manual_seed(1)))
    assert torch.equal(torch.get_rng_state(), before)
