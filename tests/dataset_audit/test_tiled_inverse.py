"""Factor, inverse and what becomes of tiny gradients, against dense algebra and against 60 digits."""

from __future__ import annotations

from pathlib import Path

import mpmath
import pytest
import torch
from torch import nn

from gradient_disclosure import Damping
from gradient_disclosure.dataset_audit import DatasetAuditSettings, audit_dataset
from gradient_disclosure.dataset_audit.tiled_inverse import (
    factor_diagonal_tile,
    factor_tile,
    inverse_tails,
    pivot_excess,
)
from gradient_disclosure.errors import IllConditionedGramError


def tiles(gram: torch.Tensor, damping: float, size: int) -> dict[tuple[int, int], torch.Tensor]:
    spans = [slice(k, k + size) for k in range(0, len(gram), size)]
    found: dict[tuple[int, int], torch.Tensor] = {}
    for i, here in enumerate(spans):
        for j in range(i):
            row, column = [found[i, k] for k in range(j)], [found[j, k] for k in range(j)]
            found[i, j] = factor_tile(gram[here, spans[j]].clone(), row, column, found[j, j])
        found[i, i] = factor_diagonal_tile(gram[here, here].clone(), [found[i, k] for k in range(i)], damping)
    return found


@pytest.mark.parametrize("size", [1, 4, 5, 13])
def test_factor_and_inverse_equal_those_of_the_whole_matrix(size: int) -> None:
    g = torch.randn(13, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = g @ g.T
    factor = torch.linalg.cholesky(gram + 0.3 * torch.eye(13, dtype=torch.float64))
    inverse = torch.linalg.inv(factor)
    found = tiles(gram, 0.3, size)
    for (i, j), tile in found.items():
        torch.testing.assert_close(tile, factor[i * size : (i + 1) * size, j * size : (j + 1) * size])
        assert tile.is_contiguous()
    count = -(-13 // size)
    tails = torch.cat([inverse_tails(j, count, lambda i, k: found[i, k]) for j in range(count)])
    torch.testing.assert_close(tails, inverse.tril(-1).square().sum(dim=0), rtol=1e-10, atol=1e-14)
    norms = gram.diagonal().split(size)
    excess = torch.cat([pivot_excess(norms[i], [found[i, k] for k in range(i)], found[i, i]) for i in range(count)])
    torch.testing.assert_close(excess, factor.diagonal().square() - 0.3, rtol=1e-9, atol=1e-12)


def test_a_matrix_that_is_not_positive_definite_is_refused() -> None:
    with pytest.raises(IllConditionedGramError, match=r"λ = 0\.5"):
        factor_diagonal_tile(torch.tensor([[-1.0]], dtype=torch.float64), [], 0.5)


class Linear(nn.Module):
    """A loss whose gradient is the input itself."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, width, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight)[:, 0]


def exact_scores(gradients: torch.Tensor, damping: float) -> list[float]:
    """1/(λM_jj) − 1 with 60 digits."""
    with mpmath.workdps(60):
        g = mpmath.matrix(gradients.tolist())
        inverse = (g * g.T + mpmath.mpf(damping) * mpmath.eye(g.rows)) ** -1
        return [float(1 / (mpmath.mpf(damping) * inverse[j, j]) - 1) for j in range(g.rows)]


@pytest.mark.parametrize("damping", [1e-6, 1.0, 1e6])
def test_well_learned_examples_keep_their_digits(damping: float, tmp_path: Path) -> None:
    """Norms from 1e-9 to 10 in one data set, as a trained model has: 1/(λM_jj) − 1 would leave rounding alone."""
    g = torch.randn(24, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    g *= torch.logspace(-9, 1, 24, dtype=torch.float64)[torch.randperm(24, generator=torch.Generator().manual_seed(2))][
        :, None
    ]
    ids = torch.arange(24)
    batches = [(g[rows], ids[rows], rows) for rows in ids.split(5)]
    settings = DatasetAuditSettings(Damping(damping), tile=7, losses=lambda module, batch: module(batch[0]))
    audit = audit_dataset(Linear(8), batches, tmp_path, settings)
    expected = torch.tensor(exact_scores(g, damping), dtype=torch.float64)
    assert float(expected.min()) < 1e-9
    torch.testing.assert_close(audit.result.scores, expected, rtol=1e-9, atol=0)


def test_a_zero_gradient_scores_zero_and_duplicates_score_little(tmp_path: Path) -> None:
    g = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [0.0, 1.0]], dtype=torch.float64)
    settings = DatasetAuditSettings(Damping(0.01), tile=3, losses=lambda module, batch: module(batch[0]))
    ids = torch.arange(4)
    scores = audit_dataset(Linear(2), [(g, ids, ids)], tmp_path, settings).result.scores
    assert scores[0] == 0.0
    torch.testing.assert_close(scores, torch.tensor(exact_scores(g, 0.01), dtype=torch.float64), rtol=1e-10, atol=0)
    assert float(scores[1]) < 1.0
