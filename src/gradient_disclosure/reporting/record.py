"""What a finished run hands to the report: numbers, one row an example, images, reconstructions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
from torch import Tensor

from gradient_disclosure.errors import DisclosureError

Value = float | int | str | bool | None
Results = Mapping[str, Value]

MOMENTS = ("control", "init", "early", "end")

EXAMPLE_COLUMNS = (
    "index",
    "label",
    "member",
    "n_drawn",
    "gnq_total",
    "gnq_max",
    "squared_norm_total",
    "bits_paper",
    "bits_paper_uncapped",
    "bits_gaussian",
    "bits_gaussian_uncapped",
    "bits_cap",
    "at_cap",
    "attacker_accuracy_ceiling",
    "attacker_tpr_ceiling_at_1pct_fpr",
    "censored_at_step",
    "lira_online",
    "lira_offline",
    "loss_threshold",
)


@dataclass(frozen=True)
class ReconstructionRecord:
    """One example attacked by one gradient reconstruction at one moment of training.

    Attributes:
        attack: name of the attack, e.g. "dlg".
        moment: "control" (the UNDEFENDED gradient at initialization: the attack's own working test), "init", "early" or
            "end" (what the defense releases at that moment).
        index: row of the example in the pool.
        original: (C, H, W), in the run's value range.
        reconstructed: (C, H, W), or None where the defense did not release the example's gradient.
        metrics: scores such as "ssim" and "psnr"; a metric that could not be computed is absent.
    """

    attack: str
    moment: str
    index: int
    original: Tensor
    reconstructed: Tensor | None
    metrics: Mapping[str, float]

    def __post_init__(self) -> None:
        if self.moment not in MOMENTS:
            raise DisclosureError(f"A reconstruction has the moment {self.moment!r}; known are {', '.join(MOMENTS)}.")


@dataclass(frozen=True)
class RunRecord:
    """Everything the report of one run is made from.

    Attributes:
        results: flat keys such as "utility/test_accuracy"; None means not applicable, not reportable or missing.
        examples: one row an example of the pool, with the columns ``EXAMPLE_COLUMNS`` (more are kept, not shown); NaN
            where a column does not apply, e.g. GNQ of a non-member.
        images: (N, C, H, W) in ``value_range``, row = pool index; None for data that are not images.
        value_range: smallest and largest value a pixel can take; None without images.
        class_names: one name a label; empty shows the labels' numbers.
        reconstructions: all reconstructions of the run; empty without such an attack.
    """

    results: Results
    examples: pd.DataFrame
    images: Tensor | None
    value_range: tuple[float, float] | None
    class_names: tuple[str, ...]
    reconstructions: tuple[ReconstructionRecord, ...]

    def __post_init__(self) -> None:
        missing = [column for column in EXAMPLE_COLUMNS if column not in self.examples.columns]
        if missing:
            raise DisclosureError(
                f"The examples of a run record lack the columns {', '.join(missing)}. "
                "Add them, filled with NaN where they do not apply."
            )
        if self.images is not None and self.value_range is None:
            raise DisclosureError("A run record with images needs their value_range.")

    def class_name(self, label: int) -> str:
        """Name of a label, its number where there is no name."""
        return self.class_names[label] if 0 <= label < len(self.class_names) else str(label)

    def members(self) -> pd.DataFrame:
        """Members with a GNQ, the highest total first; equal totals in the order of the pool."""
        audited = self.examples[self.examples["member"].astype(bool) & self.examples["gnq_total"].notna()]
        return audited.sort_values(["gnq_total", "index"], ascending=[False, True])
