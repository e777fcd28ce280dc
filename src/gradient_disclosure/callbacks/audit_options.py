"""Which options of an audit go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradient_disclosure.defenses.gnq_censor import Censor
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.scores.scoring import Scoring


def refuse_contradictions(
    scoring: Scoring, censor: Censor | None, *, has_ids: bool, excludes: bool, has_mechanism: bool
) -> None:
    """Raise if options of an audit contradict each other.

    Args:
        scoring: how batches are scored.
        censor: what drops examples.
        has_ids: whether examples are known by their index.
        excludes: whether parameters are left out of the Gram.
        has_mechanism: whether clipping and noise of DP-SGD are audited.

    Raises:
        UnsupportedTrainingError: scores that the defense cannot be judged by, or defenses that do not add up.
        ValueError: a censor without what it needs.

    Example:
        >>> refuse_contradictions(
        ...     Scoring(inverse="pinv"), None, has_ids=True, excludes=False, has_mechanism=True
        ... )  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        gradient_disclosure.errors.UnsupportedTrainingError: inverse='pinv' does not apply to DP-SGD...
    """
    if censor is not None and not has_ids:
        raise ValueError("a censor needs example_ids: it drops examples by their data set index")
    if censor is not None and excludes:
        raise ValueError("a censor cannot drop an example from excluded parameters: leave out exclude=...")
    if censor is not None and has_mechanism:
        raise UnsupportedTrainingError(
            "a censor on top of DP-SGD has no accountant epsilon (whether one example is dropped depends on the "
            "others), and is not offered. Use one of the two."
        )
    if censor is not None and scoring.inverse == "pinv":
        raise UnsupportedTrainingError(
            f"a censor by {censor.rule.statistic!r} cannot use inverse='pinv': an example whose gradient lies outside "
            "the span of the others, the most unique there is, scores 0 and would be kept, and there are no bits to "
            "budget. Use inverse='damped'; either scope will do."
        )
    if has_mechanism:
        for name, value, kept in (("scope", scoring.scope, "batch"), ("inverse", scoring.inverse, "damped")):
            if value != kept:
                raise UnsupportedTrainingError(
                    f"{name}={value!r} does not apply to DP-SGD: its noise sets the damping, and its scores are on "
                    f"their own scale, in units of the batch. Leave {name} at {kept!r}; bits and µ² are in universe "
                    "units all the same."
                )


def why_no_bits(scoring: Scoring, *, knows_draws: bool) -> str | None:
    """The reason why an audit has no bits, in words; None if it has.

    Raises:
        UnsupportedTrainingError: the scores themselves need to know how often an example is drawn.

    Example:
        >>> why_no_bits(Scoring(inverse="pinv"), knows_draws=True)
        "uses inverse='pinv', which takes the noise that bits are about to 0"
    """
    if scoring.scope == "universe_proxy" and not knows_draws:
        raise UnsupportedTrainingError(
            "scope='universe_proxy' needs to know how often an example is drawn, and the loader tells neither its "
            "batch size nor the length of its data set. Use a loader that does, or scope='batch'."
        )
    if not scoring.gives_bits:
        return f"uses inverse={scoring.inverse!r}, which takes the noise that bits are about to 0"
    if not knows_draws:
        return (
            "does not know how often an example is drawn (the loader tells neither its batch size nor the length of "
            "its data set)"
        )
    return None


def refuse_other_units(scoring: Scoring, ledger: Mapping[str, Any]) -> None:
    """Raise if a stored ledger holds scores of another scope or inverse.

    Args:
        scoring: how batches are scored from now on.
        ledger: state of the ledger that is to be continued.

    Raises:
        UnsupportedTrainingError: the two do not add up.
    """
    for name in ("scope", "inverse"):
        stored, wanted = ledger[name], getattr(scoring, name)
        if stored != wanted:
            raise UnsupportedTrainingError(
                f"the stored ledger holds scores with {name}={stored!r}, and this audit is set to {wanted!r}: they do "
                f"not add up. Continue with {name}={stored!r}, or start anew."
            )
