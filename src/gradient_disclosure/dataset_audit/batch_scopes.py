"""What the cheaper scopes say of the same examples at the same weights, for comparison with the exact audit."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from gradient_disclosure.dataset_audit.capture import batch_terms
from gradient_disclosure.dataset_audit.cross_gram import cross_gram
from gradient_disclosure.dataset_audit.settings import DatasetAuditSettings
from gradient_disclosure.scores.bits import Sampling
from gradient_disclosure.scores.gnq import gradient_uniqueness
from gradient_disclosure.scores.scope import universe_proxy


def batch_scores(
    module: nn.Module,
    data: tuple[Tensor, Tensor],
    batch_size: int,
    damping: float,
    batch_damping: float,
    seed: int,
) -> pd.DataFrame:
    """Score every example once, in one of N/b random batches of the whole pool.

    Args:
        module: the model, with the weights to audit.
        data: inputs (N, ...) and labels (N,).
        batch_size: b.
        damping: λ in units of the sum over the data set, for the universe proxy, which takes λp of a batch, p = b/N.
        batch_damping: λ in units of a batch, for the scope "batch".
        seed: of the batches.

    Returns:
        One row an example: index, batch (scope "batch"), universe_proxy.
    """
    inputs, labels = data
    size = len(labels)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    settings, parts = DatasetAuditSettings(), []
    for rows in order.split(batch_size):
        terms, _, _ = batch_terms(module, (inputs[rows], labels[rows], rows), settings)
        gram = cross_gram(terms, terms, (len(rows), len(rows)))
        # p = qr; how it is divided between the two makes no difference to the proxy.
        sampling = Sampling(rate=min(1.0, 2.0 * len(rows) / size), prior=min(0.5, 1.0 - 1e-12))
        parts.append(
            pd.DataFrame(
                {
                    "index": rows.numpy(),
                    "batch": gradient_uniqueness(gram, batch_damping).scores.numpy(),
                    "universe_proxy": universe_proxy(gram, damping, sampling).scores.numpy(),
                }
            )
        )
    return pd.concat(parts).sort_values("index", ignore_index=True)


@dataclass(frozen=True)
class Agreement:
    """How a cheaper score agrees with the exact one.

    Attributes:
        spearman: rank correlation over all examples.
        spearman_top_decile: rank correlation within the tenth of the examples with the highest exact scores.
        median_ratio: median of score / exact score, over examples with an exact score above 0.
        mean_ratio: mean score / mean exact score.
        top_overlap: fraction of the 1 % of examples with the highest exact scores that is also among the 1 % with the
            highest cheaper ones.
    """

    spearman: float
    spearman_top_decile: float
    median_ratio: float
    mean_ratio: float
    top_overlap: float


def agreement(score: Tensor, exact: Tensor) -> Agreement:
    """Compare two scores (N,) of the same examples.

    Example:
        >>> exact = torch.arange(1.0, 101.0)
        >>> agreement(2 * exact, exact)
        Agreement(spearman=1.0, spearman_top_decile=1.0, median_ratio=2.0, mean_ratio=2.0, top_overlap=1.0)
    """
    score, exact = score.double(), exact.double()
    known, decile = exact > 0, exact.topk(max(2, len(exact) // 10)).indices
    top = max(1, len(exact) // 100)
    shared = set(score.topk(top).indices.tolist()) & set(exact.topk(top).indices.tolist())
    return Agreement(
        spearman=_spearman(score, exact),
        spearman_top_decile=_spearman(score[decile], exact[decile]),
        median_ratio=float((score[known] / exact[known]).median()),
        mean_ratio=float(score.mean() / exact.mean()),
        top_overlap=len(shared) / top,
    )


def _spearman(x: Tensor, y: Tensor) -> float:
    return round(float(spearmanr(x.numpy(), y.numpy()).statistic), 12)
