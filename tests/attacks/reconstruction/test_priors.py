from __future__ import annotations

import numpy as np
import torch

from gradient_disclosure.attacks.reconstruction.priors import NoPrior, TotalVariation


def test_total_variation_by_loop() -> None:
    images = np.random.default_rng(0).normal(size=(2, 3, 4, 5))
    vertical = [abs(images[b, c, i + 1, j] - images[b, c, i, j]) for b, c, i, j in np.ndindex(2, 3, 3, 5)]
    horizontal = [abs(images[b, c, i, j + 1] - images[b, c, i, j]) for b, c, i, j in np.ndindex(2, 3, 4, 4)]
    expected = 0.3 * (np.mean(vertical) + np.mean(horizontal))
    np.testing.assert_allclose(TotalVariation(0.3)(torch.from_numpy(images)), expected)


def test_inputs_without_neighbors_have_no_penalty() -> None:
    assert TotalVariation(1.0)(torch.randn(2, 7)).item() == 0.0
    assert TotalVariation(1.0)(torch.randn(2, 1, 1, 1)).item() == 0.0
    assert NoPrior()(torch.randn(2, 1, 3, 3)).item() == 0.0
