from __future__ import annotations

import numpy as np
import pytest

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import loss_threshold_scores, membership_metrics


def test_lower_losses_look_more_like_members() -> None:
    losses = np.array([0.1, 0.2, 0.3, 0.4])
    metrics = membership_metrics(loss_threshold_scores(losses), losses < 0.25, bootstrap=10)
    assert metrics.auc == 1.0


def test_a_diverged_loss_is_refused() -> None:
    with pytest.raises(AttackInputError, match=r"losses holds NaN or infinity at index \[1\]"):
        loss_threshold_scores(np.array([0.1, np.nan]))
