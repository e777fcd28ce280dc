"""What of a training the scores of a run have seen, in words."""

from __future__ import annotations

from gradient_disclosure.audit_labels import covered_parameters, every_nth_step
from gradient_disclosure.reporting.formatting import percent
from gradient_disclosure.reporting.record import Results
from gradient_disclosure.reporting.values import number


def audit_seen(results: Results) -> tuple[str, ...]:
    """The labels of scores that do not come from every step and every parameter.

    Args:
        results: flat results.

    Returns:
        None, one or two labels.

    Example:
        >>> audit_seen({"disclosure/every_n_steps": 5, "disclosure/coverage": 1.0})
        ('audited every 5th step (one drawn at random of each 5)',)
        >>> audit_seen({})
        ()
    """
    labels = []
    n, coverage = number(results, "disclosure/every_n_steps"), number(results, "disclosure/coverage")
    if n is not None and n > 1:
        labels.append(every_nth_step(int(n)))
    if coverage is not None and coverage < 1:
        covered = number(results, "disclosure/parameters_covered")
        trainable = number(results, "disclosure/parameters_trainable")
        if covered is None or trainable is None:
            labels.append(f"coverage {percent(coverage)} of the parameters")
        else:
            labels.append(covered_parameters(int(covered), int(trainable)))
    return tuple(labels)


def sentence(results: Results) -> str | None:
    """The labels as one sentence; None for a full audit.

    Example:
        >>> sentence({"disclosure/every_n_steps": 2})
        'Audited every 2nd step (one drawn at random of each 2).'
    """
    labels = audit_seen(results)
    return f"{labels[0][0].upper()}{'; '.join(labels)[1:]}." if labels else None


def partial_notes(results: Results) -> list[str]:
    """What a reader must know of scores of some steps or some parameters; empty for a full audit.

    Args:
        results: flat results.

    Returns:
        Full sentences, the labels first.

    Example:
        >>> partial_notes({"disclosure/coverage": 0.25})[0]
        'Coverage 25.0 % of the parameters.'
    """
    label = sentence(results)
    if label is None:
        return []
    sentences = [label]
    n, coverage = number(results, "disclosure/every_n_steps"), number(results, "disclosure/coverage")
    if n is not None and n > 1:
        unscored = number(results, "disclosure/never_audited")
        sentences.append(
            f"Each audited step stands for {n:.0f}: totals and bits are estimates for all steps, right on average and "
            "uncertain for a single member; the highest GNQ of a step is that of the audited ones."
            + (f" {unscored:.0f} members were in no audited step and have no score." if unscored else "")
        )
    if coverage is not None and coverage < 1:
        sentences.append(
            "GNQ and bits are those of the covered parameters alone: what the others disclose is not in them, so no "
            "ceiling on an attacker follows, and none is shown. The cap holds for the whole model."
        )
    return sentences
