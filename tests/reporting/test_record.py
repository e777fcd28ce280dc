from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.record import ReconstructionRecord, RunRecord


def test_a_missing_column_is_named(censored_run: RunRecord) -> None:
    with pytest.raises(DisclosureError, match="lack the columns gnq_max, lira_online"):
        replace(censored_run, examples=censored_run.examples.drop(columns=["lira_online", "gnq_max"]))


def test_images_need_their_range(censored_run: RunRecord) -> None:
    with pytest.raises(DisclosureError, match="value_range"):
        replace(censored_run, value_range=None)


def test_an_unknown_moment_is_refused() -> None:
    with pytest.raises(DisclosureError, match="'middle'"):
        ReconstructionRecord("dlg", "middle", 0, torch.zeros(1, 8, 8), None, {})


def test_members_are_ranked_and_nobody_else_is_in(censored_run: RunRecord) -> None:
    members = censored_run.members()
    totals = members["gnq_total"].tolist()
    assert totals == sorted(totals, reverse=True)
    assert set(members["index"]) == set(censored_run.examples.query("member")["index"])


def test_class_names_fall_back_to_numbers(censored_run: RunRecord) -> None:
    assert censored_run.class_name(3) == "three"
    assert replace(censored_run, class_names=()).class_name(3) == "3"
