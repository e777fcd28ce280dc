"""What each example has disclosed so far, by data set index."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gradient_disclosure.errors import ExampleIdError
from gradient_disclosure.ledger_bits import SeenSteps, bit_columns
from gradient_disclosure.scores.bits import Sampling, gaussian_bits, paper_bits
from gradient_disclosure.scores.scope import SCOPES
from gradient_disclosure.scores.scoring import Scoring

if TYPE_CHECKING:
    import pandas as pd

SUMS = ("n_drawn", "gnq_total", "squared_norm_total", "paper", "gaussian", "paper_squared", "gaussian_squared")
MAXIMA = ("gnq_max", "squared_norm_max")
COLUMNS = (*SUMS, *MAXIMA, "inside_span_total")


@dataclass(frozen=True)
class Exposure:
    """How often an example is drawn: what turns scores into bits.

    Attributes:
        sampling: r and q.
        poisson: draws are independent. Otherwise (shuffled epochs) the bits are a "Poisson approximation".
    """

    sampling: Sampling
    poisson: bool


class DisclosureLedger:
    """Accumulates per-step scores of examples: totals, maxima, draws, bits, and when an example was censored.

    Steps at which an example was not drawn are accounted for by the Horvitz–Thompson estimator: each drawn step's bits
    are divided by the sampling rate (the score of a step does not depend on the example's own draw). So it is with
    steps that were not audited: if one step of every n is, chosen at random, it stands for n, in the totals and in the
    bits. ``n_drawn`` and the maxima are of the audited steps alone.

    If some parameters were left out (``coverage`` below 1), scores and bits are those of the others' gradients alone:
    with an absolute damping never above those of all, and no limit on an attacker who sees the whole gradient. The cap
    is, at any coverage and however few steps were audited: it needs the number of all steps and nothing of the scores.

    Args:
        exposure: sampling rate and prior; without it no bits are computed.
        known_ids: number of examples N if ids are 0 … N − 1; any other id is then an error. None: any integer id.
        scope: a key of ``SCOPES``: the units of the scores that are recorded, which the bits must know.
        inverse: a key of ``INVERSES``: without damping there are no bits.
        every_n_steps: n, if one random step of every n is audited.

    Attributes:
        ranks_apart: number of processes whose examples were scored apart, each among those of its own process alone; 1
            if all examples of a step were scored together.

    Example:
        >>> import torch
        >>> ledger = DisclosureLedger()
        >>> ids, scores, norms = torch.tensor([7, 3]), torch.tensor([1.0, 2.0]), torch.tensor([4.0, 5.0])
        >>> ledger.record(ids, gnq=scores, squared_norms=norms, step=0)
        >>> ledger.to_frame()[["index", "n_drawn", "gnq_total"]].values.tolist()
        [[3.0, 1.0, 2.0], [7.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        exposure: Exposure | None = None,
        *,
        known_ids: int | None = None,
        scope: str = "batch",
        inverse: str = "damped",
        every_n_steps: int = 1,
    ) -> None:
        self.exposure = exposure
        self.known_ids = known_ids
        self.every_n_steps = every_n_steps
        self.coverage = 1.0
        self.ranks_apart = 1
        self._scoring = Scoring(scope=scope, inverse=inverse)
        self.n_steps = 0
        self._rows: dict[int, int] = {}
        self._values = torch.zeros(0, len(COLUMNS), dtype=torch.float64)
        self._censored_at = torch.zeros(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Number of examples seen."""
        return len(self._rows)

    @property
    def scope(self) -> str:
        """What the sum in the recorded scores runs over."""
        return self._scoring.scope

    @property
    def inverse(self) -> str:
        """How the sum in the recorded scores was inverted."""
        return self._scoring.inverse

    @property
    def has_bits(self) -> bool:
        """Whether the recorded scores have a meaning in bits."""
        return self.exposure is not None and self._scoring.gives_bits

    @property
    def batch_exposure(self) -> Exposure | None:
        """How often an example is drawn into a set of examples that are scored together."""
        if self.exposure is None or self.ranks_apart == 1:
            return self.exposure
        sampling = self.exposure.sampling
        return Exposure(Sampling(sampling.rate / self.ranks_apart, sampling.prior), self.exposure.poisson)

    @property
    def _seen(self) -> SeenSteps:
        return SeenSteps(self.n_steps, self.every_n_steps, self.coverage)

    def rows(self, ids: Tensor) -> Tensor:
        """Row of each id, new ids being given one.

        Args:
            ids: (B,) integers, each at most once.

        Returns:
            (B,) int64.

        Raises:
            ExampleIdError: not integers, repeated in the batch, negative, or unknown.
        """
        numbers = self._checked(ids)
        rows = [self._rows.setdefault(number, len(self._rows)) for number in numbers]
        missing = len(self._rows) - self._values.shape[0]
        if missing > 0:
            grown = max(missing, self._values.shape[0], 256)
            self._values = torch.cat([self._values, torch.zeros(grown, len(COLUMNS), dtype=torch.float64)])
            self._censored_at = torch.cat([self._censored_at, torch.full((grown,), -1)])
        return torch.tensor(rows, dtype=torch.int64)

    def begin_step(self) -> None:
        """Count one training step, audited or not: every step may disclose, so the cap of a run is of all its steps."""
        self.n_steps += 1

    def cover(self, coverage: float) -> None:
        """Note what fraction of the trainable parameters a step's scores are of; the lowest is kept."""
        self.coverage = min(self.coverage, coverage)

    def record(
        self, ids: Tensor, *, gnq: Tensor, squared_norms: Tensor, step: int, inside_span: Tensor | None = None
    ) -> None:
        """Add one step's scores.

        Args:
            ids: (B,) integers: the examples that contributed to the step.
            gnq: (B,) scores, of the ledger's scope and inverse.
            squared_norms: (B,) squared gradient norms.
            step: number of the step, for messages.
            inside_span: (B,) part of each squared norm that a pseudo-inverse sees; None with damping.

        Raises:
            ExampleIdError: see :meth:`rows`.
        """
        try:
            rows = self.rows(ids)
        except ExampleIdError as error:
            raise ExampleIdError(f"step {step}: {error}") from None
        gnq, squared_norms = gnq.double().cpu(), squared_norms.double().cpu()
        paper, gaussian = self.step_bits(gnq)
        ones = torch.ones_like(gnq)
        n = self.every_n_steps
        added = torch.stack(
            [ones, n * gnq, n * squared_norms, paper, gaussian, paper.square(), gaussian.square()], dim=1
        )
        self._values[rows, : len(SUMS)] += added
        maxima = torch.stack([gnq, squared_norms], dim=1)
        extremes = slice(len(SUMS), len(SUMS) + len(MAXIMA))
        self._values[rows, extremes] = torch.maximum(self._values[rows, extremes], maxima)
        if inside_span is not None:
            self._values[rows, -1] += inside_span.double().cpu()

    def step_bits(self, gnq: Tensor) -> tuple[Tensor, Tensor]:
        """Horvitz–Thompson terms F(x̂)n/r of one step's scores (B,), paper's and Gaussian; NaN if there are no bits."""
        if self.exposure is None or self.batch_exposure is None or not self.has_bits:
            missing = torch.full_like(gnq, math.nan)
            return missing, missing
        sampling = self.exposure.sampling
        universe = SCOPES[self.scope].in_universe_units(gnq, self.batch_exposure.sampling)
        seen = self._seen.probability(sampling)
        return paper_bits(universe, sampling) / seen, gaussian_bits(universe, sampling) / seen

    def totals(self, column: str) -> Tensor:
        """One of ``COLUMNS``, for every example seen, (len(self),) float64: a copy."""
        return self._values[: len(self._rows), COLUMNS.index(column)].clone()

    def totals_of(self, ids: Tensor, column: str) -> Tensor:
        """One column, for the ids given, (B,) float64."""
        rows = self.rows(ids)  # new ids get a row first
        return self._values[rows, COLUMNS.index(column)]

    def censor(self, ids: Tensor, step: int) -> None:
        """Mark examples as contributing nothing from ``step`` on; what they disclosed before stays."""
        rows = self.rows(ids)
        self._censored_at[rows] = step

    def is_censored(self, ids: Tensor) -> Tensor:
        """(B,) bool."""
        rows = self.rows(ids)
        return self._censored_at[rows] >= 0

    @property
    def n_censored(self) -> int:
        """Number of examples censored so far."""
        return int((self._censored_at[: len(self._rows)] >= 0).sum())

    def to_frame(self) -> pd.DataFrame:
        """One row an example, sorted by index.

        Columns: index, n_drawn, gnq_total, gnq_max, squared_norm_total, squared_norm_max, censored_at_step (missing if
        never); and, with an exposure, bits_paper and bits_gaussian (capped at h2(q)), the same with ``_uncapped``
        (rank on these), ``bits_gaussian_std`` (of the estimator over draws), ``bits_gaussian_per_draw`` (Σ over draws
        · steps / n_drawn, for ranking; steps until censored), bits_cap (of the run), at_cap, attacker_accuracy_ceiling,
        attacker_advantage_ceiling, attacker_tpr_ceiling_at_1pct_fpr. Scores and bits of an example that never
        contributed are missing (a censor may drop one at its first draw). At the cap the bound says nothing. By
        pseudo-inverse there are no bits, but inside_span_mean: the part of the squared norm that the scores saw, mean
        over the draws. ``attrs`` (kept in the Parquet file) says the scope and inverse of the scores, every_n_steps,
        the coverage, and whether the examples of several processes were scored together (across_ranks, ranks_apart).
        Below a coverage of 1 the attacker's ceilings are missing: the bits leave out what the other parameters
        disclose. With every_n_steps above 1, n_drawn, gnq_max and squared_norm_max are of the audited steps,
        all else is an estimate for all of them, and bits_gaussian_std an upper estimate of its spread (what two steps
        of one window have in common cannot be seen).
        """
        import pandas as pd

        count = len(self._rows)
        values = {name: self._values[:count, i].numpy() for i, name in enumerate(COLUMNS)}
        drawn = values["n_drawn"] > 0
        censored = pd.Series(self._censored_at[:count].numpy(), dtype="Int64")
        frame = pd.DataFrame(
            {
                "index": list(self._rows),
                "n_drawn": values["n_drawn"].astype("int64"),
                **{
                    name: pd.Series(values[name]).where(drawn)
                    for name in ("gnq_total", "gnq_max", "squared_norm_total", "squared_norm_max")
                },
                "censored_at_step": censored.mask(censored < 0),
            }
        )
        if self.inverse == "pinv":
            frame["inside_span_mean"] = pd.Series(values["inside_span_total"]).where(drawn) / frame["n_drawn"]
        if (exposure := self.exposure) is not None and self.has_bits:
            at = self._censored_at[:count]
            frame = frame.join(bit_columns(values, at, exposure.sampling, self._seen, poisson=exposure.poisson))
        frame = frame.sort_values("index", ignore_index=True)
        frame.attrs.update(self._labels())
        return frame

    def to_parquet(self, path: str | Path) -> None:
        """Write :meth:`to_frame` to a Parquet file, whole or not at all."""
        from gradient_disclosure.files import write_parquet

        write_parquet(self.to_frame(), Path(path))

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and plain containers only: safe for ``torch.load(weights_only=True)``."""
        return {
            "exposure": None if self.exposure is None else asdict(self.exposure),
            "known_ids": self.known_ids,
            **self._labels(),
            "n_steps": self.n_steps,
            "ids": torch.tensor(list(self._rows), dtype=torch.int64),
            "values": self._values[: len(self._rows)].clone(),
            "censored_at": self._censored_at[: len(self._rows)].clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of :meth:`state_dict`."""
        exposure = state["exposure"]
        self.exposure = None if exposure is None else Exposure(Sampling(**exposure["sampling"]), exposure["poisson"])
        self.known_ids = state["known_ids"]
        self._scoring = Scoring(scope=state["scope"], inverse=state["inverse"])
        self.every_n_steps, self.coverage = state["every_n_steps"], state["coverage"]
        self.ranks_apart = state["ranks_apart"]
        self.n_steps = state["n_steps"]
        self._rows = {number: row for row, number in enumerate(state["ids"].tolist())}
        self._values = state["values"].clone()
        self._censored_at = state["censored_at"].clone()

    def _labels(self) -> dict[str, Any]:
        """What a reader of the scores must know of them."""
        ranks = "global" if self.ranks_apart == 1 else "per_rank"
        labels = {"scope": self.scope, "inverse": self.inverse, "across_ranks": ranks, "ranks_apart": self.ranks_apart}
        return {**labels, "every_n_steps": self.every_n_steps, "coverage": self.coverage}

    def _checked(self, ids: Tensor) -> list[int]:
        if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
            raise ExampleIdError(
                f"example ids must be a vector of integers, got {ids.dtype} of shape {tuple(ids.shape)}"
            )
        numbers: list[int] = ids.tolist()
        if len(set(numbers)) != len(numbers):
            repeated = sorted({n for n in numbers if numbers.count(n) > 1})
            raise ExampleIdError(f"ids {repeated} occur more than once in the batch: one row of a batch is one example")
        if self.known_ids is not None:
            unknown = [n for n in numbers if not 0 <= n < self.known_ids]
            if unknown:
                raise ExampleIdError(
                    f"ids {unknown} are unknown: the data set has the indices 0 … {self.known_ids - 1}"
                )
        return numbers
