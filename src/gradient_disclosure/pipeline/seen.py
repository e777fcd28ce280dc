"""How much of the target's training its audit has seen, and what follows for averages over the members."""

from __future__ import annotations

import pandas as pd

from gradient_disclosure.reporting.record import Value
from gradient_disclosure.training.fit import TrainedModel

ESTIMATED = ("gnq_total", "squared_norm_total", "bits_paper", "bits_gaussian", "at_cap")


def seen_results(target: TrainedModel, members: pd.DataFrame) -> dict[str, Value]:
    """Steps, parameters and members in the audit.

    Args:
        target: the trained model.
        members: rows of the members in the table of examples.

    Returns:
        Flat results. A member without a score was never drawn if every step was audited; otherwise it was in no audited
        step, and whether it was drawn is not known.
    """
    every, steps = target.audit.get("every_n_steps"), 0 if target.ledger is None else target.ledger.n_steps
    audited = target.audit.get("audited_steps")
    rests = every is not None and every > 1
    unscored = int((members["n_drawn"] == 0).sum())
    return {
        "disclosure/coverage": target.audit.get("coverage"),
        "disclosure/parameters_covered": target.audit.get("parameters_covered"),
        "disclosure/parameters_trainable": target.audit.get("parameters_trainable"),
        "disclosure/every_n_steps": every,
        "disclosure/audited_steps": audited,
        "disclosure/steps_audited_fraction": audited / steps if rests and steps and audited is not None else None,
        "disclosure/never_drawn": None if rests else unscored,
        "disclosure/never_audited": unscored if rests else None,
    }


def with_unseen(members: pd.DataFrame) -> pd.DataFrame:
    """The members with 0 as the estimate of those in no audited step.

    The estimate of a member in some audited step stands for more than what was seen of it. Left to themselves, these
    members average too high; with the zeros of the others the mean is unbiased. A column without any value stays so.
    """
    filled = members.copy()
    for column in ESTIMATED:
        if filled[column].notna().any():
            filled[column] = filled[column].fillna(False if column == "at_cap" else 0.0)
    return filled
