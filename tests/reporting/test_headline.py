from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gradient_disclosure.reporting.attack_answers import attack_answers
from gradient_disclosure.reporting.headline import headline
from gradient_disclosure.reporting.record import RunRecord, Value
from tests.reporting.fake_record import fake_record


def auc(attack: str, value: float, low: float | None, high: float | None) -> dict[str, Value]:
    return {f"attack/{attack}/auc": value, f"attack/{attack}/auc_low": low, f"attack/{attack}/auc_high": high}


TPR = "attack/lira_online/tpr_at_1pct_fpr"


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ({}, "Not tried"),
        (auc("lira_online", 0.6, 0.55, 0.65), "Better than guessing"),
        (auc("lira_online", 0.52, 0.5, 0.54), "Not measurably better than guessing"),
        (auc("lira_online", 0.4, 0.35, 0.45), "Not measurably better than guessing"),
        (auc("lira_online", 0.6, None, None), "AUC 0.600, no interval"),
        # A weaker baseline that succeeds counts, and an insignificant higher AUC does not hide it.
        (auc("lira_online", 0.58, 0.49, 0.66) | auc("loss_threshold", 0.55, 0.52, 0.58), "Better than guessing"),
        (
            auc("lira_online", 0.51, 0.47, 0.55) | {TPR: 0.05, f"{TPR}_low": 0.03, f"{TPR}_high": 0.08},
            "On average no better than guessing, but better for a few",
        ),
    ],
)
def test_membership_verdicts(results: dict[str, Value], verdict: str) -> None:
    answer = attack_answers(results)[0]
    assert answer.verdict == verdict
    assert ("no proof of privacy" in " ".join(answer.sentences)) == verdict.startswith("Not measurably")


def test_a_single_success_among_several_attacks_is_said() -> None:
    results = auc("lira_online", 0.5, 0.46, 0.54) | auc("lira_offline", 0.55, 0.51, 0.59)
    assert "Of the 2 attacks tried, 1 beat guessing by their interval." in attack_answers(results)[0].sentences


def scores(attack: str, working: bool, init: float | None, end: float | None) -> dict[str, Value]:
    return {
        f"attack/{attack}/working": working,
        f"attack/{attack}/init/ssim": init,
        f"attack/{attack}/end/ssim": end,
    }


@pytest.mark.parametrize(
    ("results", "verdict"),
    [
        ({}, "Not tried"),
        (scores("dlg", False, 0.95, 0.2), "Attack not working"),
        (scores("dlg", True, 0.99, 0.2), "Yes: mean SSIM 0.990 at initialization"),
        (scores("dlg", True, 0.2, 0.7), "Partly: mean SSIM 0.700 at best, at the end"),
        (scores("dlg", True, 0.0, -0.1), "Not by these attacks: mean SSIM 0.000 at best, at initialization"),
        (scores("dlg", True, None, None), "Nothing was released or scored"),
        # The score of an attack that is not working must not decide.
        (scores("dlg", False, 0.99, 0.99) | scores("idlg", True, 0.3, 0.1), "Not by these attacks: mean SSIM 0.300"),
    ],
)
def test_reconstruction_verdicts(results: dict[str, Value], verdict: str) -> None:
    assert attack_answers(results)[1].verdict.startswith(verdict)


def test_the_most_exposed_member_is_named(censored_run: RunRecord) -> None:
    examples = censored_run.examples
    top = examples.loc[examples["gnq_total"].idxmax()]
    totals = np.sort(examples["gnq_total"].dropna())[::-1]
    share = totals[: len(totals) // 10].sum() / totals.sum()
    whom = headline(censored_run)[1]
    assert f"Example {top['index']} (label {censored_run.class_name(top['label'])})" in whom.sentences[0]
    assert whom.verdict == f"The top tenth holds {100 * share:.1f} % of all GNQ"
    assert "The censor dropped 10.0 % of the members" in whom.sentences[1]


def test_members_never_drawn_are_counted_and_others_are_not(censored_run: RunRecord) -> None:
    examples = censored_run.examples.copy()
    examples.loc[examples["member"].to_numpy().nonzero()[0][:3], "n_drawn"] = 0
    sentences = " ".join(headline(replace(censored_run, examples=examples))[1].sentences)
    assert "3 members were never drawn" in sentences
    assert "never drawn" not in " ".join(headline(censored_run)[1].sentences)


@pytest.mark.parametrize(
    ("defense", "says", "does_not_say"),
    [
        ("none", "There is no formal guarantee.", "accountant"),
        ("random_censor", "A censor gives no formal guarantee.", "accountant"),
        ("dp_sgd", "ε = 8.00 at δ = 1e-04 for the released model, and for nothing else", "no formal guarantee"),
    ],
)
def test_the_guarantee_is_what_the_defense_has(defense: str, says: str, does_not_say: str) -> None:
    sentences = " ".join(headline(fake_record(defense=defense))[-1].sentences)
    assert says in sentences
    assert does_not_say not in sentences


def test_an_unmeasured_run_says_so(censored_run: RunRecord) -> None:
    empty = replace(censored_run, results={}, examples=censored_run.examples.iloc[:0])
    verdicts = [answer.verdict for answer in headline(empty)]
    assert verdicts == ["Not measured", "Not measured", "Not tried", "Not tried", "Test accuracy –"]
