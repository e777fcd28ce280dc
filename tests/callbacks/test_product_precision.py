"""Mixed precision is chosen only where the scores cannot show it."""

import lightning as L
import pytest
import torch
from torch import nn

from gradient_disclosure import Damping, GradientUniqueness, gnq_scores
from gradient_disclosure.callbacks.product_precision import SMALLEST_RELATIVE_DAMPING, ProductPrecision
from gradient_disclosure.gram.products import GramSum
from gradient_disclosure.scores.gnq import gradient_uniqueness
from gradient_disclosure.scores.scoring import Scoring


def _noted(precision: ProductPrecision, *relative: float) -> ProductPrecision:
    for each in relative:
        precision.note(gradient_uniqueness(torch.eye(3, dtype=torch.float64), each))
    return precision


def test_the_first_step_is_in_float64_and_the_largest_gradients_so_far_decide() -> None:
    assert ProductPrecision(None, Scoring()).products == "float64"
    assert _noted(ProductPrecision(None, Scoring()), 1e-2).products == "mixed"
    assert _noted(ProductPrecision(None, Scoring()), 1e-2, 1e-6, 1e-2).products == "float64"


def test_zero_gradients_say_nothing() -> None:
    precision = _noted(ProductPrecision(None, Scoring()), 1e-6)
    precision.note(gradient_uniqueness(torch.zeros(3, 3), 1e-2))
    assert precision.products == "float64"


@pytest.mark.parametrize("scoring", [Scoring(inverse="pinv"), Scoring(scope="universe_proxy")])
def test_what_cannot_bear_it_stays_in_float64(scoring: Scoring) -> None:
    assert _noted(ProductPrecision(None, scoring), 1.0).products == "float64"


def test_the_user_insists_and_a_typo_is_refused() -> None:
    assert ProductPrecision("mixed", Scoring()).products == "mixed"
    assert _noted(ProductPrecision("float64", Scoring()), 1.0).products == "float64"
    with pytest.raises(ValueError, match="float16"):
        ProductPrecision("float16", Scoring())  # type: ignore[arg-type]


def test_at_the_limit_a_score_changes_by_less_than_promised() -> None:
    """Near copies are the worst case: what tells them apart is small beside what is rounded."""
    torch.manual_seed(0)
    common = torch.randn(1, 300_000)
    blocks = torch.cat([common + 1e-4 * torch.randn(32, 300_000), torch.randn(32, 300_000)])
    scores = []
    for mixed in (False, True):
        total = GramSum(64, torch.device("cpu"), mixed=mixed)
        total.add(blocks)
        gram = total.result()
        scores.append(gnq_scores(gram, SMALLEST_RELATIVE_DAMPING * float(gram.diagonal().mean())))
    assert not torch.equal(*scores)
    torch.testing.assert_close(scores[1][:32], scores[0][:32], rtol=5e-3, atol=0.0)
    torch.testing.assert_close(scores[1][32:], scores[0][32:], rtol=1e-7, atol=0.0)


class _Wide(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(300, 500, bias=False)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        return self.net(batch[0]).square().mean(dim=(1, 2)).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.parametrize(("damping", "changes"), [(1e-2, True), (1e-7, False)])
def test_the_callback_follows_damping_and_resumes_where_it_was(damping: float, changes: bool) -> None:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(16, 200, 300), torch.arange(16))
    totals = {}
    for products in (None, "float64"):
        torch.manual_seed(1)
        audit = GradientUniqueness(
            Damping(damping, "relative"),
            example_ids=lambda batch: batch[1],
            products=products,  # type: ignore[arg-type]
        )
        trainer = L.Trainer(
            max_epochs=2,
            callbacks=[audit],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        trainer.fit(_Wide(), torch.utils.data.DataLoader(data, batch_size=8))
        totals[products] = torch.tensor(audit.ledger.to_frame()["gnq_total"].to_numpy())
        other = GradientUniqueness(Damping(damping, "relative"), example_ids=lambda batch: batch[1])
        other.load_state_dict(audit.state_dict())
        assert other._precision.smallest_relative_damping == audit._precision.smallest_relative_damping
    assert torch.equal(totals[None], totals["float64"]) is not changes
    torch.testing.assert_close(totals[None], totals["float64"], rtol=1e-5, atol=0.0)
