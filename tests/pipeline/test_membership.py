from __future__ import annotations

import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from gradient_disclosure.pipeline.membership import membership_results


def results_of(member: torch.Tensor, censored: torch.Tensor, scores: torch.Tensor) -> dict[str, object]:
    frame = pd.DataFrame({"member": member.numpy(), "censored_at_step": pd.Series(censored.numpy()).map({True: 3})})
    return dict(membership_results({"lira_online": scores}, frame, bootstrap=50, seed=0, on_attack=lambda: None))


def test_kept_and_censored_members_are_each_held_against_all_non_members() -> None:
    generator = torch.Generator().manual_seed(0)
    member = torch.arange(400) < 200
    censored = torch.arange(400) < 50
    scores = torch.randn(400, generator=generator) + 1.5 * (member & ~censored) - 0.5 * censored
    results = results_of(member, censored, scores)
    for prefix, chosen in (
        ("", torch.ones(400, dtype=torch.bool)),
        ("kept/", ~censored),
        ("censored/", ~member | censored),
    ):
        expected = roc_auc_score(member[chosen], scores[chosen])
        assert results[f"attack/lira_online/{prefix}auc"] == pytest.approx(expected)


def test_without_a_censor_there_are_no_groups_and_an_empty_group_is_left_out() -> None:
    member = torch.arange(40) < 20
    scores = torch.randn(40, generator=torch.Generator().manual_seed(0))
    assert not [key for key in results_of(member, torch.zeros(40, dtype=torch.bool), scores) if "kept" in key]
    everybody = results_of(member, member.clone(), scores)
    assert not [key for key in everybody if "/kept/" in key]
    assert "attack/lira_online/censored/auc" in everybody
