from __future__ import annotations

import numpy as np
import torch
from scipy.spatial.distance import cosine, sqeuclidean

from gradient_disclosure.attacks.reconstruction.distances import CosineDistance, SquaredL2


def test_distances_are_scipys() -> None:
    dummy, released = np.random.default_rng(0).normal(size=(2, 20))
    pair = torch.from_numpy(dummy), torch.from_numpy(released)
    expected = sqeuclidean(dummy, released) / sqeuclidean(released, np.zeros(20))
    np.testing.assert_allclose(SquaredL2()(*pair), expected)
    np.testing.assert_allclose(CosineDistance()(*pair), cosine(dummy, released))


def test_cosine_is_blind_to_the_norm_even_of_tiny_gradients() -> None:
    dummy, released = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 20)))
    expected = CosineDistance()(dummy, released)
    torch.testing.assert_close(CosineDistance()(1e-20 * dummy, 1e-30 * released), expected)


def test_a_zero_dummy_gradient_has_a_finite_derivative() -> None:
    dummy = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    distance = CosineDistance()(dummy, torch.ones(3, dtype=torch.float64))
    assert distance.item() == 1.0
    assert not torch.autograd.grad(distance, dummy)[0].isnan().any()
