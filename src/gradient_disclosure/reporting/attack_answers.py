"""Did attacks succeed? The two answers of the first screen, in words."""

from __future__ import annotations

from dataclasses import dataclass

from gradient_disclosure.reporting.formatting import fixed, percent, shown_estimate
from gradient_disclosure.reporting.record import Results
from gradient_disclosure.reporting.summary import NOT_RELEASED, moment_in_words
from gradient_disclosure.reporting.values import Estimate, estimate, number
from gradient_disclosure.reporting.vocabulary import MEMBERSHIP_ATTACKS, RECONSTRUCTION_ATTACKS

_RELEASES = {"init": "at initialization", "early": "early", "end": "at the end"}


@dataclass(frozen=True)
class Answer:
    """One question of the first screen.

    Attributes:
        question: what a reader asks.
        verdict: the short answer.
        sentences: the answer with its numbers.
    """

    question: str
    verdict: str
    sentences: tuple[str, ...]


def attack_answers(results: Results) -> tuple[Answer, Answer]:
    """Did membership inference succeed, did reconstruction?

    Example:
        >>> attack_answers({"attack/dlg/working": False})[1].verdict
        'Attack not working'
    """
    return _membership(results), _reconstruction(results)


def _membership(results: Results) -> Answer:
    question = "Could members be told from others?"
    scores = {name: estimate(results, f"attack/{name}/auc") for name in MEMBERSHIP_ATTACKS}
    known = {name: score for name, score in scores.items() if score is not None}
    if not known:
        return Answer(question, "Not tried", ("No membership inference attack was run.",))
    best = max(known, key=lambda name: (_beats_guessing(known[name]), known[name].value))
    score = known[best]
    tpr = estimate(results, f"attack/{best}/tpr_at_1pct_fpr")
    sentences = [
        f"{MEMBERSHIP_ATTACKS[best]} is the strongest attack tried: AUC {shown_estimate(score, fixed)} "
        "(0.5 is guessing)."
    ]
    if tpr is not None:
        sentences.append(
            f"While accusing 1 % of the non-members it finds {shown_estimate(tpr, percent)} of the members "
            "(guessing: 1 %)."
        )
    if score.low is None:
        return Answer(
            question, f"AUC {fixed(score.value)}, no interval", (*sentences, "Without an interval there is no verdict.")
        )
    successes = sum(_beats_guessing(other) for other in known.values())
    if successes:
        sentences.append(f"Of the {len(known)} attacks tried, {successes} beat guessing by their interval.")
        return Answer(question, "Better than guessing", tuple(sentences))
    if tpr is not None and tpr.low is not None and tpr.low > 0.01:
        return Answer(question, "On average no better than guessing, but better for a few", tuple(sentences))
    sentences.append("That is no proof of privacy: a stronger attack may succeed.")
    return Answer(question, "Not measurably better than guessing", tuple(sentences))


def _beats_guessing(score: Estimate) -> bool:
    return score.low is not None and score.low > 0.5


def _reconstruction(results: Results) -> Answer:
    question = "Could inputs be reconstructed?"
    tried = [name for name in RECONSTRUCTION_ATTACKS if results.get(f"attack/{name}/working") is not None]
    if not tried:
        return Answer(question, "Not tried", ("No gradient reconstruction was run.",))
    working = [name for name in tried if results[f"attack/{name}/working"]]
    failed = [RECONSTRUCTION_ATTACKS[name] for name in tried if name not in working]
    sentences = [
        f"{RECONSTRUCTION_ATTACKS[name]}: SSIM "
        + ", ".join(f"{_score(results, name, moment)} {words}" for moment, words in _RELEASES.items())
        + "."
        for name in working
    ]
    if failed:
        sentences.append(
            f"Attack not working: {', '.join(failed)} did not reconstruct even the undefended gradient, so nothing "
            "follows for the defense."
        )
    if not working:
        return Answer(question, "Attack not working", tuple(sentences))
    scores = [
        (score, words)
        for name in working
        for moment, words in _RELEASES.items()
        if (score := number(results, f"attack/{name}/{moment}/ssim")) is not None
    ]
    if not scores:
        return Answer(question, "Nothing was released or scored", tuple(sentences))
    sentences.append("SSIM 1 is a perfect copy. DLG often fails on trained networks without any defense.")
    best, words = max(scores)
    return Answer(question, f"{_likeness(best)} {words}", tuple(sentences))


def _score(results: Results, attack: str, moment: str) -> str:
    shown_score = moment_in_words(results, attack, moment, "ssim", fixed)
    return f"({shown_score})" if shown_score == NOT_RELEASED else shown_score


def _likeness(ssim: float) -> str:
    if ssim > 0.9:
        return f"Yes: mean SSIM {fixed(ssim)}"
    return f"{'Partly' if ssim > 0.5 else 'Not by these attacks'}: mean SSIM {fixed(ssim)} at best,"
