from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gradient_disclosure.reporting.record import RunRecord
from gradient_disclosure.reporting.summary import COST, DISCLOSURE, MEMBERSHIP, UTILITY, side_by_side, title
from gradient_disclosure.reporting.table import console_table
from tests.reporting.fake_record import fake_record


def printed(results: Any, width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(console_table(results))
    return console.export_text()


def test_it_fits_100_columns_without_cutting_anything(censored_run: RunRecord) -> None:
    text = printed(censored_run.results)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "…" not in text
    cells = [cell for column in side_by_side(censored_run.results) for cell in column.cells]
    missing = [cell for cell in cells if cell.label not in text or cell.text not in text]
    assert missing == []


def test_the_four_columns_stand_side_by_side(censored_run: RunRecord) -> None:
    header = printed(censored_run.results).splitlines()[2]
    positions = [header.index(name) for name in ("Utility", "Disclosure", "Attack success", "Cost")]
    assert positions == sorted(positions)


@pytest.mark.parametrize("row", [*UTILITY, *DISCLOSURE, *MEMBERSHIP, *COST], ids=lambda row: row.key)
def test_every_row_shows_its_own_key(row: Any) -> None:
    cells = {c.label: c.text for column in side_by_side({row.key: 0.123}) for c in column.cells if c.text != "–"}
    assert list(cells) == [row.label]
    assert "12" in cells[row.label] or cells[row.label] == "0.1 s"


def test_every_missing_value_is_a_dash() -> None:
    cells = [cell for column in side_by_side({}) for cell in column.cells]
    assert {cell.text for cell in cells} == {"–"}
    assert side_by_side(dict.fromkeys(fake_record().results)) == side_by_side({})


def test_fractions_are_percentages_and_intervals_follow() -> None:
    key = "attack/lira_online/tpr_at_1pct_fpr"
    cells = side_by_side({key: 0.06, f"{key}_low": 0.02, f"{key}_high": 0.11})[2].cells
    assert {cell.label: cell.text for cell in cells}["LiRA online at 1 % FPR, TPR"] == "6.0 % [2.0, 11.0]"


def test_an_attack_that_is_not_working_is_never_a_score(censored_run: RunRecord) -> None:
    cells = {cell.label: cell.text for cell in side_by_side(censored_run.results)[2].cells}
    assert cells["Inverting Gradients at init"] == "attack not working"
    assert cells["DLG at init"] == "SSIM 0.997"
    assert "private" not in printed(censored_run.results).replace("not proof of privacy", "")


def test_what_was_not_released_is_never_a_score() -> None:
    results = {"attack/dlg/working": True, "attack/dlg/init/n_scored": 0, "attack/dlg/init/n_not_released": 3}
    text = printed(results)
    assert "not released" in text
    assert "SSIM" not in text
    partly = printed(results | {"attack/dlg/init/n_scored": 2, "attack/dlg/init/ssim": 0.4})
    assert "SSIM 0.400" in partly
    assert "3 not released" in partly


def test_membership_of_kept_and_censored_members_has_rows_of_its_own(censored_run: RunRecord) -> None:
    text = printed(censored_run.results)
    assert "LiRA online, kept members" in text
    assert "kept members" not in printed(fake_record(defense="none").results)


@pytest.mark.parametrize(
    ("defense", "sentence"),
    [
        ("gnq_censor", "no formal guarantee"),
        ("random_censor", "no formal guarantee"),
        ("dp_sgd", "does not cover the ledger"),
    ],
)
def test_footnotes_say_what_the_defense_does_not_promise(defense: str, sentence: str) -> None:
    text = printed(fake_record(defense=defense).results)
    assert sentence in text
    assert "no formal guarantee" not in printed(fake_record(defense="none").results)
    assert ("Poisson approximation" in text) == (defense != "dp_sgd")
    assert "the bound in bits is vacuous" in text


def test_no_warning_of_the_cap_where_nobody_is_at_it(censored_run: RunRecord) -> None:
    assert "vacuous" not in printed({**censored_run.results, "disclosure/fraction_at_cap": 0.0})


def test_epsilon_is_shown_with_delta_and_absent_for_a_censor(censored_run: RunRecord) -> None:
    cells = {c.label: c.text for c in side_by_side(fake_record(defense="dp_sgd", epsilon=8.0).results)[1].cells}
    assert cells["Formal guarantee ε"] == "8.00 at δ = 1e-04"
    assert {c.label: c.text for c in side_by_side(censored_run.results)[1].cells}["Formal guarantee ε"] == "–"


def test_markup_in_a_name_is_printed_as_it_is() -> None:
    assert "[red]x[/red]" in printed({"setting/model": "[red]x[/red]", "defense/name": "[bold]y"})
    assert title({"defense/name": "[bold]y"}) == "[bold]y"
