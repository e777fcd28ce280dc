from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import log_softmax

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import cross_entropy, logit_scaled_confidence


@settings(deadline=None)
@given(
    arrays(np.float64, (4, 3), elements=st.floats(-8, 8)),
    arrays(np.int64, 4, elements=st.integers(0, 2)),
)
def test_confidence_is_the_logit_of_the_true_class_probability(logits: np.ndarray, labels: np.ndarray) -> None:
    probability = np.exp(log_softmax(logits, axis=1))[np.arange(4), labels]
    expected = np.log(probability) - np.log1p(-probability)
    np.testing.assert_allclose(logit_scaled_confidence(logits, labels), expected, rtol=1e-7, atol=1e-7)


def test_confidence_stays_exact_where_the_probability_rounds_to_one_or_zero() -> None:
    logits = torch.tensor([[800.0, 0.0, 0.0], [-800.0, 0.0, 0.0]])
    confidence = logit_scaled_confidence(logits, torch.zeros(2, dtype=torch.int64))
    np.testing.assert_allclose(confidence, [800 - np.log(2), -800 - np.log(2)], rtol=1e-15)


@settings(deadline=None)
@given(arrays(np.float64, (3, 4), elements=st.floats(-30, 30)), arrays(np.int64, 3, elements=st.integers(0, 3)))
def test_cross_entropy_is_torchs(logits: np.ndarray, labels: np.ndarray) -> None:
    expected = torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), reduction="none")
    np.testing.assert_allclose(cross_entropy(logits, labels), expected, rtol=1e-9, atol=1e-12)


def test_cross_entropy_of_a_certain_model_is_small_but_not_zero() -> None:
    loss = cross_entropy(torch.tensor([[60.0, 0.0], [-900.0, 0.0]]), torch.tensor([0, 0]))
    np.testing.assert_allclose(loss, [np.exp(-60.0), 900.0], rtol=1e-12)


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), r"\[0, 3\); those at index \[1\]"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), r"those at index \[0\]"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), "must be integers"),
        (torch.zeros(2, 3), torch.tensor([0]), r"shape \(2,\)"),
        (torch.zeros(2, 1), torch.tensor([0, 0]), "at least 2 classes"),
        (torch.zeros(2), torch.tensor([0, 0]), "2 axes"),
        (torch.tensor([[0.0, torch.nan]]), torch.tensor([0]), r"logits holds NaN or infinity at index \[\[0, 1\]\]"),
    ],
)
def test_bad_input_is_refused(logits: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(AttackInputError, match=message):
        logit_scaled_confidence(logits, labels)
    with pytest.raises(AttackInputError, match=message):
        cross_entropy(logits, labels)
