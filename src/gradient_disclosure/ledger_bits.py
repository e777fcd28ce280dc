"""The columns of a ledger that are about bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from gradient_disclosure.scores.bits import Sampling, attacker_ceiling, run_cap

if TYPE_CHECKING:
    import pandas as pd

AT_CAP = 1.0 - 1e-9


@dataclass(frozen=True)
class SeenSteps:
    """What of a training's steps has been seen.

    Attributes:
        n_steps: steps of the training, audited or not: each may disclose, so the cap is of all of them.
        every_n_steps: one random step of so many was audited.
        coverage: fraction of the trainable parameters in the scores.
    """

    n_steps: int
    every_n_steps: int
    coverage: float

    def probability(self, sampling: Sampling) -> float:
        """Of a member to be in a given step, and that step to be audited: r/n."""
        return sampling.rate / self.every_n_steps


def bit_columns(
    totals: Mapping[str, Any], censored_at: Tensor, sampling: Sampling, seen: SeenSteps, *, poisson: bool
) -> pd.DataFrame:
    """Bits, their spread, the cap and the attacker's ceilings; see :meth:`DisclosureLedger.to_frame`.

    Args:
        totals: column of the ledger → (N,) array.
        censored_at: (N,) step, or −1.
        sampling: r and q.
        seen: which steps the totals are estimated from.
        poisson: whether draws are independent.

    Returns:
        One row an example, in the order of ``totals``.
    """
    import pandas as pd

    probability = seen.probability(sampling)
    cap = run_cap(sampling, seen.n_steps, poisson=poisson)
    drawn = pd.Series(totals["n_drawn"])
    frame = pd.DataFrame(index=drawn.index)
    for name in ("paper", "gaussian"):
        uncapped = pd.Series(totals[name]).where(drawn > 0)
        frame[f"bits_{name}"] = uncapped.clip(upper=cap)
        frame[f"bits_{name}_uncapped"] = uncapped
    # Two steps of one window are never both audited: their negative covariance cannot be estimated and is left out.
    frame["bits_gaussian_std"] = pd.Series(totals["gaussian_squared"] * (1.0 - probability)) ** 0.5
    steps = censored_at.numpy()
    exposed = pd.Series(steps, dtype="float64").where(steps >= 0, seen.n_steps)
    frame["bits_gaussian_per_draw"] = frame["bits_gaussian_uncapped"] * probability * exposed / drawn
    frame["bits_cap"] = cap
    frame["at_cap"] = frame["bits_gaussian_uncapped"] >= cap * AT_CAP
    whole = seen.coverage == 1.0
    ceilings = [
        attacker_ceiling(bits, sampling.prior) if whole and bits == bits else None for bits in frame["bits_gaussian"]
    ]
    frame["attacker_accuracy_ceiling"] = [c.accuracy if c else math.nan for c in ceilings]
    frame["attacker_advantage_ceiling"] = [c.advantage if c else math.nan for c in ceilings]
    frame["attacker_tpr_ceiling_at_1pct_fpr"] = [c.tpr_at_1pct_fpr if c else math.nan for c in ceilings]
    return frame
