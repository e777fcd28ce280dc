"""Each model of a cohort as target, attacked by the others."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from gradient_disclosure.attacks.errors import AttackInputError
from gradient_disclosure.attacks.membership import lira_scores, membership_metrics
from gradient_disclosure.attacks.membership.in_turn import pairs_in_turn, scores_in_turn
from gradient_disclosure.training.recipe import shadow_memberships


def _cohort(n: int = 8, size: int = 200) -> tuple[Tensor, Tensor]:
    masks = shadow_memberships(n, size, seed=0)
    signals = torch.randn(n, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return signals + 1.5 * masks, masks


def test_each_row_is_the_attack_with_the_models_of_the_other_pairs() -> None:
    signals, masks = _cohort()
    attack = partial(lira_scores, online=True, variance="pooled")
    found = scores_in_turn(signals, masks, attack)
    others = torch.tensor([0, 1, 2, 3, 6, 7])
    for target in (4, 5):
        assert torch.equal(found[target], attack(signals[target], signals[others], masks[others]))
    assert min(membership_metrics(found[i], masks[i], bootstrap=2).auc for i in range(8)) > 0.7


def test_the_complement_would_tell_the_members_by_counting() -> None:
    """Without any signal at all: an example has one "in" model fewer exactly if the target has it."""
    signals, masks = _cohort()

    def fewest_in_models(target: Tensor, shadows: Tensor, membership: Tensor) -> Tensor:
        return -membership.sum(dim=0).double()

    everyone = torch.arange(len(masks))
    with_complement = fewest_in_models(signals[0], signals[everyone != 0], masks[everyone != 0])
    assert membership_metrics(with_complement, masks[0], bootstrap=2).auc == 1.0
    in_turn = scores_in_turn(signals, masks, fewest_in_models)
    assert membership_metrics(in_turn[0], masks[0], bootstrap=2).auc == 0.5


def test_signals_that_know_nothing_give_half() -> None:
    _, masks = _cohort(8, 2000)
    signals = torch.randn(8, 2000, generator=torch.Generator().manual_seed(2))
    found = scores_in_turn(signals, masks, partial(lira_scores, online=True))
    intervals = [membership_metrics(found[i], masks[i], bootstrap=400, confidence=0.999) for i in range(8)]
    assert all(each.auc_low < 0.5 < each.auc_high for each in intervals)


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (torch.tensor([[1, 0], [0, 1]]), "at least 4"),
        (torch.tensor([[1, 0], [0, 1], [1, 0], [1, 1]]), "models 2 and 3"),
        (torch.ones(4), "at least 4"),
    ],
)
def test_cohorts_without_complementary_pairs_are_refused(masks: Tensor, message: str) -> None:
    with pytest.raises(AttackInputError, match=message):
        list(pairs_in_turn(masks))
