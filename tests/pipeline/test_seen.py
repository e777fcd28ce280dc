from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

from gradient_disclosure.pipeline.overhead import audit_overhead
from gradient_disclosure.pipeline.results import disclosure_results, example_table
from gradient_disclosure.pipeline.seen import with_unseen
from gradient_disclosure.pipeline.settings import RunSettings
from gradient_disclosure.reporting.audit_seen import audit_seen
from gradient_disclosure.training.defense import AuditSettings
from gradient_disclosure.training.fit import Watch, train
from tests.training.recipes import recipe


def results_of(audit: AuditSettings, folder: Path) -> tuple[dict[str, object], pd.DataFrame]:
    settings = RunSettings(recipe(audit=audit))
    members = torch.arange(0, 40, 2)
    target = train(settings.recipe, members, 0, folder, Watch(audited=True))
    again = train(settings.recipe, members, 0, folder, Watch(audited=True))
    assert again.audit == target.audit  # also of a training that is read back
    frame = example_table(settings, again, members, {})
    return dict(disclosure_results(settings, again, frame, 0)), frame


def test_the_results_of_a_partial_audit_say_so(tmp_path: Path) -> None:
    results, frame = results_of(AuditSettings(every_n_steps=4, layers=("network.4.*",)), tmp_path / "cheap")
    full, _ = results_of(AuditSettings(), tmp_path / "full")
    assert (results["disclosure/every_n_steps"], full["disclosure/every_n_steps"]) == (4, 1)
    assert (results["disclosure/parameters_covered"], results["disclosure/parameters_trainable"]) == (195, 235)
    assert full["disclosure/parameters_covered"] == full["disclosure/parameters_trainable"] == 235
    assert results["disclosure/coverage"] == pytest.approx(195 / 235)
    assert results["disclosure/steps_audited_fraction"] == results["disclosure/audited_steps"] / 9  # type: ignore[operator]
    assert (full["disclosure/audited_steps"], full["disclosure/steps_audited_fraction"]) == (9, None)
    assert results["disclosure/attacker_accuracy_ceiling_mean"] is None
    assert full["disclosure/attacker_accuracy_ceiling_mean"] is not None
    unscored = int(frame[frame["member"]]["gnq_total"].isna().sum())
    assert (results["disclosure/never_audited"], results["disclosure/never_drawn"]) == (unscored, None)
    assert (full["disclosure/never_audited"], full["disclosure/never_drawn"]) == (None, 0)
    assert results["disclosure/bits_cap"] == full["disclosure/bits_cap"]
    assert len(audit_seen(results)) == 2  # type: ignore[arg-type]
    assert audit_seen(full) == ()  # type: ignore[arg-type]


def test_members_in_no_audited_step_count_as_zero_in_the_means_only() -> None:
    members = pd.DataFrame(
        {
            "n_drawn": [2, 0],
            "gnq_total": [8.0, math.nan],
            "squared_norm_total": [4.0, math.nan],
            "bits_paper": [math.nan, math.nan],
            "bits_gaussian": [0.5, math.nan],
            "at_cap": pd.array([True, None], dtype="boolean"),
        }
    )
    filled = with_unseen(members)
    assert filled["gnq_total"].mean() == 4.0
    assert filled["bits_gaussian"].mean() == 0.25
    assert filled["at_cap"].astype("Float64").mean() == 0.5
    assert filled["bits_paper"].isna().all()
    assert members["gnq_total"].isna().sum() == 1


def test_audits_of_few_steps_average_to_the_full_one(tmp_path: Path) -> None:
    """Over many schedules on one and the same training, the mean over the members is that of the full audit."""
    settings = RunSettings(recipe(audit=AuditSettings()))
    members = torch.arange(0, 40, 2)
    full = example_table(
        settings, train(settings.recipe, members, 0, tmp_path / "full", Watch(audited=True)), members, {}
    )
    means = []
    for seed in range(24):
        audit = ScheduleOf(every_n_steps=3, of=seed)
        part = replace(settings.recipe, audit=audit)
        frame = example_table(settings, train(part, members, 0, tmp_path / str(seed), Watch(audited=True)), members, {})
        means.append(with_unseen(frame[frame["member"]])["gnq_total"].mean())
    error = torch.tensor(means).std() / math.sqrt(len(means))
    assert abs(sum(means) / len(means) - full["gnq_total"].mean()) < 3 * float(error)
    assert float(error) < 0.2 * full["gnq_total"].mean()


class ScheduleOf(AuditSettings):
    """Settings whose schedule has a seed of its own, whatever that of the training."""

    def __init__(self, every_n_steps: int, of: int) -> None:
        super().__init__(every_n_steps=every_n_steps)
        object.__setattr__(self, "of", of)

    def schedule(self, seed: int) -> object:  # type: ignore[override]
        return super().schedule(self.of if hasattr(self, "of") else seed)


def test_the_overhead_is_averaged_over_audited_and_other_steps() -> None:
    full = audit_overhead(recipe())
    seldom = audit_overhead(recipe(audit=AuditSettings(every_n_steps=1000)))
    assert 1.0 < seldom < 1.0 + 0.1 * (full - 1.0) < full
    assert audit_overhead(recipe(audit=AuditSettings(layers=("network.4.*",)))) > 0
