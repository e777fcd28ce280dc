from __future__ import annotations

import torch

from gradient_disclosure.dataset_audit.batch_scopes import agreement, batch_scores
from gradient_disclosure.scores.gnq import gnq_scores
from tests.dataset_audit.cases import case, literal_gradients


def test_every_example_is_scored_in_one_batch_of_its_own_draw() -> None:
    module, batches = case("mlp", 50)
    x, y, _ = (torch.cat(parts) for parts in zip(*batches, strict=True))
    table = batch_scores(module, (x, y), batch_size=20, damping=2.0, batch_damping=0.1, seed=0)
    assert table["index"].tolist() == list(range(50))
    gradients = literal_gradients(module, batches)
    rows = torch.randperm(50, generator=torch.Generator().manual_seed(0))[20:40]
    gram = gradients[rows] @ gradients[rows].T
    scored = table.set_index("index").loc[rows.tolist()]
    torch.testing.assert_close(torch.tensor(scored["batch"].to_numpy()), gnq_scores(gram, 0.1), rtol=1e-9, atol=0)
    proxy = 0.4 * gnq_scores(gram, 2.0 * 0.4)  # p = 20 / 50
    torch.testing.assert_close(torch.tensor(scored["universe_proxy"].to_numpy()), proxy, rtol=1e-9, atol=0)


def test_one_batch_of_everything_is_the_exact_score() -> None:
    module, batches = case("mlp", 30)
    x, y, _ = (torch.cat(parts) for parts in zip(*batches, strict=True))
    table = batch_scores(module, (x, y), batch_size=30, damping=0.5, batch_damping=0.5, seed=0)
    gradients = literal_gradients(module, batches)
    expected = gnq_scores(gradients @ gradients.T, 0.5)
    torch.testing.assert_close(torch.tensor(table["batch"].to_numpy()), expected, rtol=1e-9, atol=0)


def test_agreement_counts_what_is_shared_at_the_top() -> None:
    exact = torch.arange(1.0, 201.0)
    score = exact.clone()
    score[199] = 0.5
    found = agreement(score, exact)
    assert found.top_overlap == 0.5
    assert found.spearman < 1.0
    assert found.median_ratio == 1.0
