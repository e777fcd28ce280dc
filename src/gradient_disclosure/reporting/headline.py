"""The first screen in words: how much was disclosed, about whom, and did attacks succeed."""

from __future__ import annotations

from dataclasses import replace

from gradient_disclosure.reporting.attack_answers import Answer, attack_answers
from gradient_disclosure.reporting.audit_seen import sentence
from gradient_disclosure.reporting.formatting import bits, percent, shown, significant
from gradient_disclosure.reporting.record import Results, RunRecord
from gradient_disclosure.reporting.values import number, text
from gradient_disclosure.reporting.vocabulary import CENSORS, defense_in_words


def headline(record: RunRecord) -> tuple[Answer, ...]:
    """Answer a reader's first questions from a run's numbers.

    Args:
        record: the run.

    Returns:
        How much was disclosed, about whom, whether attacks succeeded (membership, then reconstruction), at what price.

    Example:
        >>> import pandas as pd
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> examples = pd.DataFrame(columns=list(EXAMPLE_COLUMNS))
        >>> record = RunRecord({"utility/test_accuracy": 0.9}, examples, None, None, (), ())
        >>> headline(record)[-1].verdict
        'Test accuracy 90.0 %'
    """
    return (_how_much(record.results), _about_whom(record), *attack_answers(record.results), _price(record.results))


def _how_much(results: Results) -> Answer:
    answer = _amount("How much was disclosed?", results)
    label = sentence(results)
    return answer if label is None else replace(answer, sentences=(label, *answer.sentences))


def _amount(question: str, results: Results) -> Answer:
    cap = number(results, "disclosure/bits_cap")
    gaussian, paper = (number(results, f"disclosure/bits_{kind}_mean") for kind in ("gaussian", "paper"))
    total = number(results, "disclosure/gnq_total_mean")
    if gaussian is None and paper is None:
        if total is None:
            return Answer(question, "Not measured", ("This run has no audit of its gradients.",))
        return Answer(
            question, f"GNQ {significant(total)} on average", ("No figure in bits was computed for this run.",)
        )
    sentences = [
        f"Membership of an average member: {shown(gaussian, bits)} by the Gaussian estimate, {shown(paper, bits)} by "
        f"the paper's formula. No run with this sampling can disclose more than {shown(cap, bits)}."
    ]
    ceiling = number(results, "disclosure/attacker_accuracy_ceiling_mean")
    if ceiling is not None:
        sentences.append(
            f"By such an estimate an attacker is right about a member at most {percent(ceiling)} of the time."
        )
    at_cap = number(results, "disclosure/fraction_at_cap")
    if at_cap:
        sentences.append(
            f"{percent(at_cap)} of the members are at the cap: for them the bits say nothing, only their rank."
        )
    main = gaussian if gaussian is not None else paper
    return Answer(question, f"{shown(main, bits)} per member, estimated", tuple(sentences))


def _about_whom(record: RunRecord) -> Answer:
    question = "About whom?"
    members = record.members()
    if members.empty:
        return Answer(question, "Not measured", ("No member has a gradient uniqueness.",))
    totals = members["gnq_total"].astype(float)
    top, median = members.iloc[0], float(totals.median())
    tenth = max(1, round(len(totals) / 10))
    sentences = [
        f"Example {int(top['index'])} (label {record.class_name(int(top['label']))}) stands out most: GNQ "
        f"{significant(float(top['gnq_total']))}"
        + (f", {significant(float(top['gnq_total']) / median)} times the median member's." if median > 0 else ".")
    ]
    if totals.sum() > 0:
        share = float(totals.iloc[:tenth].sum() / totals.sum())
        verdict = f"The top tenth holds {percent(share)} of all GNQ"
    else:
        verdict = "Nobody: every GNQ is 0"
    dropped = number(record.results, "defense/censored_fraction")
    if dropped is not None and text(record.results, "defense/name") in CENSORS:
        sentences.append(
            f"The censor dropped {percent(dropped)} of the members; what they had disclosed before still counts."
        )
    never = int((record.examples["member"].astype(bool) & (record.examples["n_drawn"] == 0)).sum())
    if never:
        sentences.append(_never_seen(never, record.results))
    return Answer(question, verdict, tuple(sentences))


def _never_seen(members: int, results: Results) -> str:
    if (number(results, "disclosure/every_n_steps") or 1) > 1:
        return f"{members} members were in no audited step: what was released about them is not known."
    return f"{members} members were never drawn: nothing was released about them, and they have no rank."


def _price(results: Results) -> Answer:
    defense = text(results, "defense/name")
    epsilon, delta = number(results, "defense/epsilon"), number(results, "defense/delta")
    sentences = ["No defense was used." if defense == "none" else f"Defense: {defense_in_words(defense)}."]
    if epsilon is not None:
        at = "" if delta is None else f" at δ = {delta:.0e}"
        sentences.append(
            f"The accountant guarantees ε = {epsilon:.2f}{at} for the released model, and for nothing else."
        )
    elif defense == "none":
        sentences.append("There is no formal guarantee.")
    elif defense in CENSORS:
        sentences.append("A censor gives no formal guarantee.")
    overhead = number(results, "cost/audit_overhead")
    if overhead is not None:
        sentences.append(f"A training step with the audit takes {overhead:.2f} times as long as a plain one.")
    accuracy = shown(number(results, "utility/test_accuracy"), percent)
    return Answer("At what price?", f"Test accuracy {accuracy}", tuple(sentences))
