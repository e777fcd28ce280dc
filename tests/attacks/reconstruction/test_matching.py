from __future__ import annotations

from itertools import permutations

import pytest
import torch

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.reconstruction import match_to_originals


def test_a_shuffled_batch_is_put_back_in_order() -> None:
    original = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    shuffled = original[torch.tensor([3, 0, 5, 1, 4, 2])]
    assert torch.equal(shuffled[match_to_originals(shuffled, original)], original)


def test_the_pairing_is_the_best_of_all() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(40):
        original, found = torch.rand(2, 5, 2, generator=generator)
        errors = {order: (found[list(order)] - original).square().sum().item() for order in permutations(range(5))}
        assert tuple(match_to_originals(found, original).tolist()) == min(errors, key=lambda order: errors[order])


def test_a_greedy_pairing_would_be_worse() -> None:
    # Greedily 0 takes 1 (distance 1), which leaves 4 to -3; together the other pairing is cheaper in squared error.
    original, found = torch.tensor([[0.0], [4.0]]), torch.tensor([[-3.0], [1.0]])
    assert match_to_originals(found, original).tolist() == [0, 1]


def test_bad_input_is_refused() -> None:
    with pytest.raises(AttackInputError, match=r"their shapes are \(1, 2\) and \(1, 3\)"):
        match_to_originals(torch.zeros(1, 2), torch.zeros(1, 3))
    with pytest.raises(AttackInputError, match="reconstructed holds NaN"):
        match_to_originals(torch.full((1, 2), torch.nan), torch.zeros(1, 2))
