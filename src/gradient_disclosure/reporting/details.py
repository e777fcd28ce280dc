"""The two tables behind 'attack success': every membership attack and every reconstruction, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from gradient_disclosure.reporting.formatting import (
    MISSING,
    Format,
    count,
    decibel,
    fixed,
    percent,
    shown,
    shown_estimate,
    significant,
)
from gradient_disclosure.reporting.record import MOMENTS, Results
from gradient_disclosure.reporting.summary import NOT_RELEASED, moment_in_words
from gradient_disclosure.reporting.values import estimate, number
from gradient_disclosure.reporting.vocabulary import MEMBERSHIP_ATTACKS, RECONSTRUCTION_ATTACKS

MEMBERSHIP_METRICS: tuple[tuple[str, str, Format], ...] = (
    ("AUC", "auc", fixed),
    ("Balanced\naccuracy", "balanced_accuracy", percent),
    ("TPR at\n10 % FPR", "tpr_at_10pct_fpr", percent),
    ("TPR at\n1 % FPR", "tpr_at_1pct_fpr", percent),
    ("TPR at\n0.1 % FPR", "tpr_at_0.1pct_fpr", percent),
)

MEMBERSHIP_GROUPS = (("", "all members"), ("kept/", "kept members"), ("censored/", "censored members"))


RECONSTRUCTION_METRICS: tuple[tuple[str, str, Format], ...] = (
    ("PSNR", "psnr", decibel),
    ("MSE", "mse", significant),
    ("LPIPS", "lpips_at_64px", fixed),
    ("label", "label_accuracy", percent),
)


@dataclass(frozen=True)
class Grid:
    """A table of texts.

    Attributes:
        title: what the table shows.
        header: one text a column, the first over the names of the rows.
        rows: the name of a row, then one text a column; a text may have several lines.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def membership_grid(results: Results) -> Grid | None:
    """Every membership attack that ran, over all members and over kept and censored ones.

    Args:
        results: flat results.

    Returns:
        One row an attack and group; None where no membership attack ran.

    Example:
        >>> grid = membership_grid({"attack/loss_threshold/auc": 0.55})
        >>> grid.rows
        (('Loss threshold', '0.550', '–', '–', '–', '–'),)
    """
    rows = []
    for attack, words in MEMBERSHIP_ATTACKS.items():
        for group, group_words in MEMBERSHIP_GROUPS:
            prefix = f"attack/{attack}/{group}"
            if all(number(results, prefix + key) is None for _, key, _ in MEMBERSHIP_METRICS):
                continue
            name = words if not group else f"{words}, {group_words}"
            texts = (shown_estimate(estimate(results, prefix + key), form) for _, key, form in MEMBERSHIP_METRICS)
            rows.append((name, *texts))
    if not rows:
        return None
    header = ("Attack", *(label for label, _, _ in MEMBERSHIP_METRICS))
    return Grid("Membership inference: members against non-members", header, tuple(rows))


def reconstruction_grid(results: Results) -> Grid | None:
    """Every gradient reconstruction that ran, at the control and at the three moments of a release.

    Args:
        results: flat results.

    Returns:
        One row an attack; None where no reconstruction ran. An attack that fails its control is marked as not working.

    Example:
        >>> grid = reconstruction_grid({"attack/dlg/working": False, "attack/dlg/control/ssim": 0.2})
        >>> grid.rows[0][:2]
        ('DLG: attack not working', 'SSIM 0.200')
    """
    rows = []
    for attack, words in RECONSTRUCTION_ATTACKS.items():
        if not any(key.startswith(f"attack/{attack}/") for key in results):
            continue
        failed = results.get(f"attack/{attack}/working") is False
        name = f"{words}: attack not working" if failed else words
        rows.append((name, *(_moment(results, attack, moment) for moment in MOMENTS)))
    if not rows:
        return None
    header = ("Attack", "Control\n(undefended)", "Initialization", "Early", "End")
    return Grid("Gradient reconstruction: from exactly what the defense releases", header, tuple(rows))


def _moment(results: Results, attack: str, moment: str) -> str:
    prefix = f"attack/{attack}/{moment}"
    likeness = moment_in_words(results, attack, moment, "ssim", fixed)
    if likeness in (NOT_RELEASED, MISSING):
        return likeness
    lines = [f"SSIM {likeness}"]
    for label, metric, form in RECONSTRUCTION_METRICS:
        if f"{prefix}/{metric}" in results:
            lines.append(f"{label} {shown(number(results, f'{prefix}/{metric}'), form)}")
    withheld = number(results, f"{prefix}/n_not_released")
    if withheld:
        lines.append(f"{count(withheld)} not released")
    return "\n".join(lines)
