"""Which options of an audit go together."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from gradient_disclosure.defenses.gnq_censor import Censor
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.ledger import DisclosureLedger, Exposure
from gradient_disclosure.scores.scoring import Scoring

logger = logging.getLogger(__name__)


def refuse_contradictions(
    scoring: Scoring,
    censor: Censor | None,
    *,
    has_ids: bool,
    excludes: bool,
    has_mechanism: bool,
    every_n_steps: int = 1,
) -> None:
    """Raise if options of an audit contradict each other.

    Args:
        scoring: how batches are scored.
        censor: what drops examples.
        has_ids: whether examples are known by their index.
        excludes: whether parameters are left out of the Gram.
        has_mechanism: whether clipping and noise of DP-SGD are audited.
        every_n_steps: one step of so many is audited.

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
        raise ValueError(
            "a censor cannot drop an example from excluded parameters: leave out exclude=... and layers=..."
        )
    if censor is not None and every_n_steps != 1:
        raise UnsupportedTrainingError(
            f"a censor must see every step: at the steps that every_n_steps={every_n_steps} leaves out, an example "
            "over its budget would contribute all the same. Leave every_n_steps at 1, or use no censor."
        )
    if has_mechanism and excludes:
        raise UnsupportedTrainingError(
            "exclude=... and layers=... do not apply to DP-SGD: it clips by the norm of the gradient of all "
            "parameters, which a part of them does not tell. Leave them out; every_n_steps may be used."
        )
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


def refuse_other_parameters(layers: Sequence[str] | None, exclude: Sequence[str], stored: Mapping[str, Any]) -> None:
    """Raise if a stored ledger holds scores of other parameters.

    Args:
        layers: patterns of the parameters audited from now on; None for all.
        exclude: patterns of those left out.
        stored: both, from the state of the audit that is to be continued.

    Raises:
        UnsupportedTrainingError: the two do not add up.

    Example:
        >>> refuse_other_parameters(None, (), {"layers": None, "exclude": []})
    """
    known = None if stored["layers"] is None else tuple(stored["layers"])
    if known != layers or (layers is None and tuple(stored["exclude"]) != tuple(exclude)):
        raise UnsupportedTrainingError(
            f"the stored ledger holds scores with layers={stored['layers']}, exclude={stored['exclude']}, and this "
            f"audit is set to layers={layers and list(layers)}, exclude={list(exclude)}: they do not add up. Continue "
            "with the stored choice, or start anew."
        )


def keep_ranks(ledger: DisclosureLedger, ranks_apart: int) -> None:
    """Tell a ledger how many processes score their examples apart.

    Args:
        ledger: of the audit.
        ranks_apart: from now on; 1 if all examples of a step are scored together.

    Raises:
        UnsupportedTrainingError: it holds scores that do not add up with these.

    Example:
        >>> ledger = DisclosureLedger()
        >>> keep_ranks(ledger, 2)
        >>> ledger.ranks_apart
        2
    """
    if ledger.ranks_apart != ranks_apart and len(ledger):
        raise UnsupportedTrainingError(
            f"this audit's ledger holds scores of examples among those of one of {ledger.ranks_apart} ranks, and from "
            f"now on it would be one of {ranks_apart} (1: all examples of a step together): they do not add up. "
            "Continue with the same across_ranks and number of processes, or start anew."
        )
    ledger.ranks_apart = ranks_apart


def refuse_across_ranks(censor: Censor | None, *, has_mechanism: bool, n_ranks: int) -> None:
    """Raise for defenses that need the whole batch in one process.

    Raises:
        UnsupportedTrainingError: with what to change.

    Example:
        >>> refuse_across_ranks(None, has_mechanism=False, n_ranks=2)
    """
    if n_ranks > 1 and (censor is not None or has_mechanism):
        what = "a censor takes examples out of" if censor is not None else "DP-SGD clips and noises"
        raise UnsupportedTrainingError(
            f"{n_ranks} processes train together, and {what} the gradient of a batch that one process holds: it is "
            "not offered across processes. Use one device, or the audit without it."
        )


def keep_exposure(ledger: DisclosureLedger, exposure: Exposure | None, scoring: Scoring, *, has_ids: bool) -> None:
    """Tell a ledger how often an example is drawn, and the reader if there will be no bits.

    Args:
        ledger: of the audit.
        exposure: of the training that begins; None if that is not known.
        scoring: how batches are scored.
        has_ids: whether the ledger will be kept at all.

    Raises:
        UnsupportedTrainingError: the ledger holds scores of another way of drawing, or the scores need to know it.

    Example:
        >>> keep_exposure(DisclosureLedger(), None, Scoring(), has_ids=False)
    """
    known = ledger.exposure
    if known is not None and exposure != known and len(ledger):
        raise UnsupportedTrainingError(
            f"this audit's ledger was kept at {known}, but this training draws at {exposure}: their bits do not "
            "add up. Use a fresh GradientUniqueness."
        )
    ledger.exposure = exposure
    reason = why_no_bits(scoring, knows_draws=exposure is not None)
    if reason is not None and has_ids:
        logger.warning("GradientUniqueness %s: the ledger holds GNQ and norms, but no bits.", reason)
