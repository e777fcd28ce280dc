"""The same report in Weights & Biases; the only place that imports wandb."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.figures.catalog import FIGURES
from gradient_disclosure.reporting.record import Results, RunRecord

_LOGGER = logging.getLogger(__name__)

Mode = Literal["offline", "online", "disabled"]

SCALAR_GROUPS = ("disclosure/", "attack/", "utility/", "cost/", "defense/")


def log_to_wandb(
    record: RunRecord,
    folder: Path,
    *,
    project: str,
    mode: Mode,
    run_id: str,
    share_examples: bool,
    config: Mapping[str, Any],
) -> None:
    """Log a finished run's scalars, its ledger as a table and its figures.

    Figures that show training examples are left out of an online run unless ``share_examples`` is true. The ledger (who
    was a member, GNQ, scores; no inputs) is always logged.

    Args:
        record: the run.
        folder: the run's folder, with its figures; W&B's own files go to its ``wandb``.
        project: name of the W&B project.
        mode: "offline" needs no account, "online" uploads, "disabled" does nothing. ``wandb sync`` uploads an offline
            run as it is, training examples included; a warning says so unless ``share_examples`` is true.
        run_id: id of the W&B run; logging again with the same id continues that run.
        share_examples: allow training examples to be uploaded.
        config: the run's settings.

    Raises:
        DisclosureError: if W&B cannot be started; the run's files are not touched.

    Example:
        >>> from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS
        >>> record = RunRecord({}, pd.DataFrame(columns=list(EXAMPLE_COLUMNS)), None, None, (), ())
        >>> log_to_wandb(
        ...     record, Path("."), project="demo", mode="disabled", run_id="demo", share_examples=False, config={}
        ... )
    """
    if mode == "disabled":
        return
    import wandb

    pictures = figures_to_log(folder, examples_allowed=mode != "online" or share_examples)
    with_examples = any(figure.name in pictures for figure in FIGURES if figure.shows_examples)
    if mode == "offline" and with_examples and not share_examples:
        _LOGGER.warning("The offline W&B run below %s shows training examples: `wandb sync` would upload them.", folder)
    # W&B cannot look up an earlier run without a network, and says so when asked to.
    resume: Literal["allow"] | None = "allow" if mode == "online" else None
    try:
        run = wandb.init(project=project, id=run_id, resume=resume, mode=mode, dir=folder, config=dict(config))
    except (wandb.Error, OSError) as error:
        raise _not_started(mode, folder, error) from error
    try:
        images = {f"figures/{name}": wandb.Image(str(path)) for name, path in pictures.items()}
        table = wandb.Table(dataframe=ledger_table(record.examples))
        run.log({**scalars(record.results), **images, "ledger": table})
    finally:
        wandb.finish()


def _not_started(mode: Mode, folder: Path, error: Exception) -> DisclosureError:
    return DisclosureError(
        f"Weights & Biases could not start in mode {mode!r}: {error}. Nothing is lost: the same command reads back "
        f"what is finished in {folder}. Log in with `wandb login`, or use logger.mode=offline or logger=none."
    )


def scalars(results: Results) -> dict[str, float]:
    """Numbers of the results that W&B can plot; None is left out, never 0.

    Example:
        >>> scalars({"utility/test_accuracy": 0.9, "attack/dlg/working": True, "cost/total_seconds": None, "meta/x": 1})
        {'utility/test_accuracy': 0.9, 'attack/dlg/working': 1.0}
    """
    return {
        key: float(value)
        for key, value in results.items()
        if key.startswith(SCALAR_GROUPS) and value is not None and not isinstance(value, str)
    }


def figures_to_log(folder: Path, *, examples_allowed: bool) -> dict[str, Path]:
    """Figures of a run folder, without those that show training examples unless they are allowed.

    Args:
        folder: a run's folder, after ``write_report``.
        examples_allowed: whether training examples may leave the machine.

    Returns:
        Files by figure name; a figure that the run did not draw is absent.

    Example:
        >>> figures_to_log(Path("/nowhere"), examples_allowed=True)
        {}
    """
    allowed = (figure.name for figure in FIGURES if examples_allowed or not figure.shows_examples)
    files = {name: folder / "figures" / f"{name}.png" for name in allowed}
    return {name: path for name, path in files.items() if path.is_file()}


def ledger_table(examples: pd.DataFrame) -> pd.DataFrame:
    """The ledger with missing entries as None, which W&B shows as empty; NaN of a nullable column would be refused.

    Example:
        >>> examples = pd.DataFrame({"censored_at_step": pd.array([3, None], dtype="Int64")})
        >>> ledger_table(examples)["censored_at_step"].tolist()
        [3, None]
    """
    plain = examples.astype(object)
    return plain.where(plain.notna(), None)
