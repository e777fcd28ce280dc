from __future__ import annotations

import numpy as np
import pytest
import torch

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership.arrays import as_float64, as_membership, shown


def test_numpy_and_torch_give_the_same_numbers() -> None:
    values = np.array([0.1, 0.2], dtype=np.float32)
    from_numpy = as_float64(values, "scores", ndim=1)
    from_torch = as_float64(torch.from_numpy(values).requires_grad_(), "scores", ndim=1)
    assert from_numpy.dtype == torch.float64
    assert torch.equal(from_numpy, from_torch)
    assert not from_torch.requires_grad


def test_non_finite_entries_are_named() -> None:
    values = torch.zeros(2, 3)
    values[1, 2] = torch.nan
    values[0, 1] = torch.inf
    with pytest.raises(AttackInputError, match=r"shadow_signals holds NaN or infinity at index \[\[0, 1\], \[1, 2\]\]"):
        as_float64(values, "shadow_signals", ndim=2)


def test_a_long_list_of_indices_is_cut_and_counted() -> None:
    assert shown(torch.arange(12)) == "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9] and 2 more"


def test_membership_takes_zero_and_one_only() -> None:
    assert as_membership(np.array([1, 0]), "membership", (2,)).tolist() == [True, False]
    with pytest.raises(AttackInputError, match="holds other values"):
        as_membership(np.array([1, 2]), "membership", (2,))
    with pytest.raises(AttackInputError, match=r"must have shape \(3,\)"):
        as_membership(np.array([1, 0]), "membership", (3,))
