"""Wherever scores of a partial audit are shown, it is said."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from gradient_disclosure.reporting.comparison.collect import ComparedRun
from gradient_disclosure.reporting.comparison.columns import comparison_grid
from gradient_disclosure.reporting.figures.agreement import gnq_against_attack
from gradient_disclosure.reporting.figures.distribution import gnq_distribution
from gradient_disclosure.reporting.figures.extremes import highest_and_lowest
from gradient_disclosure.reporting.headline import headline
from gradient_disclosure.reporting.html import render_report
from gradient_disclosure.reporting.record import RunRecord
from gradient_disclosure.reporting.table import console_table
from gradient_disclosure.reporting.wandb_run import scalars
from tests.reporting.fake_record import fake_record

STEPS = "udited every 5th step (one drawn at random of each 5)"
LAYERS = "650 of 13,706 parameters (coverage 4.7 %)"


@pytest.fixture(scope="module")
def partial() -> RunRecord:
    record = fake_record(defense="none")
    seen = {
        "disclosure/every_n_steps": 5,
        "disclosure/steps_audited_fraction": 0.2,
        "disclosure/coverage": 650 / 13_706,
        "disclosure/parameters_covered": 650,
        "disclosure/parameters_trainable": 13_706,
        "disclosure/never_audited": 3,
        "setting/every_n_steps": 5,
        "setting/layers": "network.4.*",
    }
    examples = record.examples.copy()
    examples.loc[examples["member"].to_numpy().nonzero()[0][:3], "n_drawn"] = 0
    return replace(record, results={**record.results, **seen}, examples=examples)


def printed(record: RunRecord) -> str:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(console_table(record.results))
    return " ".join(console.export_text().replace("│", " ").split())


def test_the_console_says_it(partial: RunRecord) -> None:
    text = printed(partial)
    assert STEPS in text
    assert LAYERS in text
    assert "Steps audited" in text
    assert "20.0 %" in text
    assert "no ceiling on an attacker follows" in text
    assert "3 members were in no audited step" in text


def test_the_page_and_its_first_answer_say_it(partial: RunRecord) -> None:
    page = render_report(partial, {})
    assert page.count(STEPS) >= 3  # title, first answer, notes
    first, second = headline(partial)[:2]
    assert first.sentences[0] == f"A{STEPS}; {LAYERS}."
    assert second.sentences[-1] == "3 members were in no audited step: what was released about them is not known."


@pytest.mark.parametrize("draw", [gnq_distribution, gnq_against_attack, highest_and_lowest])
def test_figures_say_it(draw: object, partial: RunRecord) -> None:
    figure = draw(partial)  # type: ignore[operator]
    assert figure.get_suptitle() == f"A{STEPS}; {LAYERS}."
    assert draw(fake_record(defense="none")).get_suptitle() == ""  # type: ignore[operator]


def test_a_comparison_and_wandb_say_it(partial: RunRecord) -> None:
    grid = comparison_grid([ComparedRun("a", partial.results)])
    assert {"Every n steps", "Layers"} <= set(grid.header)
    assert grid.rows[0][grid.header.index("Every n steps")] == "5"
    mixed = comparison_grid([ComparedRun("a", partial.results), ComparedRun("b", fake_record().results)])
    assert "Every n steps" in mixed.header
    assert "Every n steps" not in comparison_grid([ComparedRun("b", fake_record().results)]).header
    assert scalars(partial.results)["disclosure/every_n_steps"] == 5.0


def test_a_full_audit_has_no_label() -> None:
    record = fake_record(defense="none")
    full = replace(record, results={**record.results, "disclosure/every_n_steps": 1})
    for text in (printed(full), render_report(full, {})):
        assert "udited every" not in text
        assert "of each" not in text
