"""The one side-by-side table, utility | disclosure | attack success | cost, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from gradient_disclosure.reporting.audit_seen import audit_seen
from gradient_disclosure.reporting.formatting import (
    MISSING,
    Format,
    bits,
    duration,
    fixed,
    multiple,
    percent,
    shown_estimate,
    significant,
)
from gradient_disclosure.reporting.record import Results
from gradient_disclosure.reporting.values import estimate, number, text
from gradient_disclosure.reporting.vocabulary import RECONSTRUCTION_ATTACKS, defense_in_words

NOT_RELEASED = "not released"


@dataclass(frozen=True)
class Row:
    """How one key of the results is shown.

    Attributes:
        label: plain words.
        key: key of the results; an interval is read from ``key_low`` and ``key_high``.
        form: format of the number, with its unit.
        term: anchor of the glossary entry that says what it means.
        optional: left out, rather than shown as a dash, where the run does not have it.
    """

    label: str
    key: str
    form: Format
    term: str
    optional: bool = False


@dataclass(frozen=True)
class Cell:
    """One number as it is shown: its label, its text and the glossary entry behind it."""

    label: str
    text: str
    term: str


@dataclass(frozen=True)
class Column:
    """One of the four columns of the table."""

    title: str
    cells: tuple[Cell, ...]


UTILITY = (
    Row("Test accuracy", "utility/test_accuracy", percent, "accuracy"),
    Row("Test loss", "utility/test_loss", significant, "accuracy"),
    Row("Train accuracy", "utility/train_accuracy", percent, "accuracy"),
    Row("Members censored", "defense/censored_fraction", percent, "censored"),
)

DISCLOSURE = (
    Row("GNQ total, mean", "disclosure/gnq_total_mean", significant, "gnq"),
    Row("GNQ total, median", "disclosure/gnq_total_median", significant, "gnq"),
    Row("GNQ total, highest", "disclosure/gnq_total_max", significant, "gnq"),
    Row("Bits, paper, mean", "disclosure/bits_paper_mean", bits, "bits-paper"),
    Row("Bits, Gaussian, mean", "disclosure/bits_gaussian_mean", bits, "bits-gaussian"),
    Row("Cap of the run", "disclosure/bits_cap", bits, "bits-cap"),
    Row("Members at the cap", "disclosure/fraction_at_cap", percent, "bits-cap"),
    Row("Attacker's ceiling, mean", "disclosure/attacker_accuracy_ceiling_mean", percent, "ceiling"),
    Row("Squared norm, mean", "disclosure/squared_norm_total_mean", significant, "squared-norm"),
    Row("Parameters covered", "disclosure/coverage", percent, "coverage"),
    Row("Steps audited", "disclosure/steps_audited_fraction", percent, "coverage", optional=True),
)

MEMBERSHIP = (
    Row("LiRA online, AUC", "attack/lira_online/auc", fixed, "auc"),
    Row("LiRA online at 1 % FPR, TPR", "attack/lira_online/tpr_at_1pct_fpr", percent, "tpr"),
    Row("LiRA offline, AUC", "attack/lira_offline/auc", fixed, "auc"),
    Row("Loss threshold, AUC", "attack/loss_threshold/auc", fixed, "auc"),
    Row("AUC, kept members", "attack/lira_online/kept/auc", fixed, "auc", optional=True),
    Row("AUC, censored members", "attack/lira_online/censored/auc", fixed, "auc", optional=True),
    Row("TPR at 10 % FPR, kept", "attack/lira_online/kept/tpr_at_10pct_fpr", percent, "tpr", optional=True),
    Row("TPR at 10 % FPR, censored", "attack/lira_online/censored/tpr_at_10pct_fpr", percent, "tpr", optional=True),
    Row("Spearman, GNQ and LiRA", "disclosure/spearman_gnq_total_lira_online", fixed, "spearman"),
    Row("Spearman, norm and LiRA", "disclosure/spearman_squared_norm_total_lira_online", fixed, "spearman"),
)

COST = (
    Row("Training", "cost/train_seconds", duration, "cost"),
    Row("Shadow models", "cost/cohort_seconds", duration, "cost"),
    Row("Membership attacks", "cost/membership_seconds", duration, "cost"),
    Row("Reconstructions", "cost/reconstruction_seconds", duration, "cost"),
    Row("Whole run", "cost/total_seconds", duration, "cost"),
    Row("Audit overhead", "cost/audit_overhead", multiple, "cost"),
)


def side_by_side(results: Results) -> tuple[Column, ...]:
    """Arrange a run's numbers in four columns of labeled cells.

    Args:
        results: flat results.

    Returns:
        Utility, disclosure, attack success and cost.

    Example:
        >>> utility = side_by_side({"utility/test_accuracy": 0.942})[0]
        >>> [(cell.label, cell.text) for cell in utility.cells][:2]
        [('Test accuracy', '94.2 %'), ('Test loss', '–')]
    """
    reconstruction = tuple(_reconstruction_cell(results, name) for name in RECONSTRUCTION_ATTACKS)
    return (
        Column("Utility", _cells(results, UTILITY)),
        Column("Disclosure", (*_cells(results, DISCLOSURE), _guarantee_cell(results))),
        Column("Attack success", (*_cells(results, MEMBERSHIP), *reconstruction)),
        Column("Cost", _cells(results, COST)),
    )


def title(results: Results) -> str:
    """Name a run in one line: defense, data, model and the settings that matter most.

    Example:
        >>> title({"defense/name": "dp_sgd", "setting/data": "digits", "setting/seed": 0})
        'DP-SGD · digits · seed 0'
    """
    parts = [defense_in_words(text(results, "defense/name"))]
    for key, form in (
        ("data", "{}"),
        ("model", "{}"),
        ("batch_size", "batches of {}"),
        ("epochs", "{} epochs"),
        ("seed", "seed {}"),
    ):
        value = text(results, f"setting/{key}")
        if value is not None:
            parts.append(form.format(value))
    parts += audit_seen(results)
    return " · ".join(parts)


def _cells(results: Results, rows: tuple[Row, ...]) -> tuple[Cell, ...]:
    wanted = (row for row in rows if not row.optional or number(results, row.key) is not None)
    return tuple(Cell(row.label, shown_estimate(estimate(results, row.key), row.form), row.term) for row in wanted)


def _guarantee_cell(results: Results) -> Cell:
    epsilon, delta = number(results, "defense/epsilon"), number(results, "defense/delta")
    if epsilon is None:
        return Cell("Formal guarantee ε", MISSING, "epsilon")
    return Cell("Formal guarantee ε", f"{epsilon:.2f}" + ("" if delta is None else f" at δ = {delta:.0e}"), "epsilon")


def _reconstruction_cell(results: Results, name: str) -> Cell:
    """SSIM of what the defense releases at initialization: the moment at which a working attack can succeed."""
    label = f"{RECONSTRUCTION_ATTACKS[name]} at init"
    if results.get(f"attack/{name}/working") is False:
        return Cell(label, "attack not working", "control")
    shown = moment_in_words(results, name, "init", "ssim", fixed)
    return Cell(label, shown if shown in (MISSING, NOT_RELEASED) else f"SSIM {shown}", "reconstruction")


def moment_in_words(results: Results, attack: str, moment: str, metric: str, form: Format) -> str:
    """Show one score of a reconstruction; a gradient that was not released is never a score.

    Example:
        >>> results = {"attack/dlg/end/n_scored": 0, "attack/dlg/end/n_not_released": 4}
        >>> moment_in_words(results, "dlg", "end", "ssim", fixed)
        'not released'
    """
    prefix = f"attack/{attack}/{moment}"
    if number(results, f"{prefix}/n_not_released") and not number(results, f"{prefix}/n_scored"):
        return NOT_RELEASED
    return shown_estimate(estimate(results, f"{prefix}/{metric}"), form)
