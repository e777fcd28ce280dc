from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradient_disclosure import DisclosureLedger, GradientUniqueness, gnq_scores
from gradient_disclosure.defenses.budget import AbsoluteThreshold, MedianMultiple, QuantileThreshold
from gradient_disclosure.defenses.gnq_censor import CensorRule, Decision, GnqCensor, RandomCensor
from gradient_disclosure.errors import CensorLimitError, UnsupportedTrainingError
from gradient_disclosure.scores.clipping import GaussianMechanism
from gradient_disclosure.scores.gnq import gradient_uniqueness
from tests.toy import ToyModule, examples, fit, loader

BY_INDEX = {"example_ids": lambda batch: batch[2]}


class ScriptedCensor:
    """Drops the ids it was told to, from the step it was told."""

    def __init__(self, drop_at: dict[int, int]) -> None:
        self.rule = CensorRule(max_fraction=1.0)
        self.drop_at = drop_at
        self.step = -1

    def decide(self, ledger: Any, ids: torch.Tensor, active: torch.Tensor, score: Any) -> Decision:
        self.step += 1
        due = torch.tensor([self.drop_at.get(int(i), 10**9) <= self.step for i in ids[active]], dtype=torch.bool)
        return Decision(active[~due], active[due], score(active[~due]))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_step_is_that_of_the_batch_without_the_censored(optimizer: str) -> None:
    """Dropped at once, later, everybody of a batch: against a loop that never sees the dropped examples."""
    drop_at = {1: 0, 4: 0, 7: 1, 9: 6, **dict.fromkeys(range(12, 18), 2), 19: 3, 18: 3}
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    module = ToyModule(OPTIMIZERS[optimizer], net=net)
    start = {k: v.clone() for k, v in module.state_dict().items()}
    audit = GradientUniqueness(**BY_INDEX, censor=ScriptedCensor(drop_at))
    fit(module, loader(dtype=torch.float64), audit)
    censored = [p.detach().clone() for p in module.parameters()]

    x, y, index = examples(dtype=torch.float64)
    module.load_state_dict(start)
    stepper = module.configure_optimizers()
    step = 0
    for _ in range(3):
        for ids in index.split(6):
            kept = ids[[drop_at.get(int(i), 10**9) > step for i in ids]]
            step += 1
            if not len(kept):
                continue
            stepper.zero_grad()
            F.cross_entropy(net(x[kept]), y[kept]).backward()
            stepper.step()
    for a, b in zip(censored, module.parameters(), strict=True):
        torch.testing.assert_close(a, b.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_all_dropped_means_no_step(optimizer: str) -> None:
    module = ToyModule(OPTIMIZERS[optimizer])
    before = [p.detach().clone() for p in module.parameters()]
    trainer = fit(
        module, loader(), GradientUniqueness(**BY_INDEX, censor=ScriptedCensor(dict.fromkeys(range(20), 0))), epochs=1
    )
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert not trainer.optimizers[0].state


def test_a_censor_that_drops_nobody_changes_nothing() -> None:
    def weights(*callbacks: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        module = ToyModule()
        fit(module, loader(), *callbacks)
        return list(module.parameters())

    censor = GnqCensor(CensorRule(threshold=AbsoluteThreshold(1e30)))
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights(), weights(GradientUniqueness(**BY_INDEX, censor=censor)), strict=True)
    )


def ledger_with(totals: list[float]) -> DisclosureLedger:
    ledger = DisclosureLedger()
    values = torch.tensor(totals)
    ledger.record(torch.arange(len(totals)), gnq=values, squared_norms=values, step=0)
    return ledger


def test_no_contributing_example_ends_above_its_budget() -> None:
    """Dropping an outlier raises the others' scores: the ledger must hold what the RELEASED update discloses."""
    torch.manual_seed(0)
    along = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    gradients = torch.stack([30 * along, 10 * along, *(0.3 * torch.randn(4, 3, dtype=torch.float64))])
    gram = gradients @ gradients.T
    scores = gnq_scores(gram, 100.0)
    budget = float(scores[1]) * 1.5
    assert float(scores[0]) > budget > float(scores[1])  # at first sight only the outlier is over its budget
    censor = GnqCensor(CensorRule(threshold=AbsoluteThreshold(budget)))
    ids = torch.arange(6)
    decision = censor.decide(DisclosureLedger(), ids, ids, lambda kept: gradient_uniqueness(gram[kept][:, kept], 100.0))
    assert decision.dropped.tolist() == [0, 1]  # what hid behind it is dropped too
    assert float(decision.result.scores.max()) <= budget
    assert sorted(decision.kept.tolist() + decision.dropped.tolist()) == list(range(6))


def test_running_totals_count() -> None:
    ledger = ledger_with([5.0, 1.0])
    rule = CensorRule(threshold=AbsoluteThreshold(6.0))
    assert rule.over_budget(ledger, torch.tensor([0, 1]), torch.tensor([2.0, 2.0])).tolist() == [True, False]
    step = CensorRule(statistic="step_gnq", threshold=AbsoluteThreshold(1.5))
    assert step.over_budget(ledger, torch.tensor([0, 1]), torch.tensor([2.0, 1.0])).tolist() == [True, False]


def test_thresholds_follow_everybody_drawn_so_far() -> None:
    ledger = ledger_with([1.0, 2.0, 3.0, 4.0])
    ids, scores = torch.tensor([3]), torch.tensor([6.0])
    assert not CensorRule(threshold=MedianMultiple(4.1, 4)).over_budget(ledger, ids, scores).any()  # median 2.5
    assert CensorRule(threshold=MedianMultiple(3.9, 4)).over_budget(ledger, ids, scores).all()
    assert not CensorRule(threshold=MedianMultiple(3.9, 5)).over_budget(ledger, ids, scores).any()  # too few drawn
    assert CensorRule(threshold=QuantileThreshold(0.3, 4)).over_budget(ledger, ids, scores).all()
    assert MedianMultiple(2.0).limit(torch.tensor([])) == float("inf")


def test_the_random_control_drops_as_many_at_the_same_steps() -> None:
    """Same audit, same rule, as many dropped; but chosen without looking at the score."""
    torch.manual_seed(0)
    gram = torch.diag(torch.tensor([100.0, 1, 1, 1, 1, 1, 1, 1, 1, 1])).double()
    rule, ids = CensorRule(threshold=AbsoluteThreshold(50.0)), torch.arange(10)

    def score(kept: torch.Tensor) -> Any:
        return gradient_uniqueness(gram[kept][:, kept], 1.0)

    assert GnqCensor(rule).decide(DisclosureLedger(), ids, ids, score).dropped.tolist() == [0]
    dropped = [
        RandomCensor(rule, seed).decide(DisclosureLedger(), ids, ids, score).dropped.tolist() for seed in range(300)
    ]
    assert all(len(each) == 1 for each in dropped)
    counts = torch.bincount(torch.tensor([each[0] for each in dropped]), minlength=10)
    assert int(counts.min()) > 10  # each of 10 expected 30 times; P(≤ 10) < 1e-4 in all
    control = RandomCensor(rule, seed=1)
    first = control.decide(DisclosureLedger(), ids, ids, score)
    second = control.decide(DisclosureLedger(), ids, first.kept, score)
    assert second.dropped.numel() == 0  # an example the rule counted once is not counted again
    other = RandomCensor(rule, seed=99)
    other.load_state_dict(control.state_dict())
    gram[1, 1] = 100.0
    assert torch.equal(
        other.decide(DisclosureLedger(), ids, ids, score).dropped,
        control.decide(DisclosureLedger(), ids, ids, score).dropped,
    )


def test_what_was_disclosed_before_the_drop_stays_in_the_ledger() -> None:
    audit = GradientUniqueness(**BY_INDEX, censor=ScriptedCensor({3: 5}))
    fit(ToyModule(), loader(), audit)
    row = audit.ledger.to_frame().set_index("index").loc[3]
    assert row["n_drawn"] == 2  # in the first batch of each epoch of 4 steps: steps 0, 4 and 8, dropped at 8
    assert row["censored_at_step"] == 8
    assert row["gnq_total"] > 0
    assert audit.ledger.n_censored == 1


def test_dropping_too_many_stops_with_a_message() -> None:
    censor = GnqCensor(CensorRule(threshold=AbsoluteThreshold(1e-9), max_fraction=0.25))
    with pytest.raises(CensorLimitError, match=r"6 of 20 members.*max_fraction = 25%"):
        fit(ToyModule(), loader(), GradientUniqueness(**BY_INDEX, censor=censor))


def test_a_censor_is_not_combined_with_dp_sgd_or_used_without_ids() -> None:
    """The censored sum can change by 2C when one example (a twin) is added, where an accountant assumes C."""
    with pytest.raises(UnsupportedTrainingError, match="no accountant epsilon"):
        GradientUniqueness(**BY_INDEX, censor=GnqCensor(), mechanism=GaussianMechanism(1.0, 1.0))
    with pytest.raises(ValueError, match="excluded parameters"):
        GradientUniqueness(**BY_INDEX, censor=GnqCensor(), exclude=["net.0.*"])
    with pytest.raises(ValueError, match="needs example_ids"):
        GradientUniqueness(censor=GnqCensor())


def test_the_twin_that_breaks_the_accounting() -> None:
    """Why no ε is offered: an outlier censored alone is kept once its twin joins: ONE example moves the sum by 2C."""
    outlier = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    crowd = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.9, 0.1], [0.0, 1.0, 0.2]], dtype=torch.float64)
    rule = CensorRule(threshold=AbsoluteThreshold(5.0))

    def released_sum(gradients: torch.Tensor) -> torch.Tensor:
        clipped = gradients * (1.0 / gradients.norm(dim=1)).clamp(max=1.0)[:, None]
        gram, ids = clipped @ clipped.T, torch.arange(len(clipped))
        decision = GnqCensor(rule).decide(
            DisclosureLedger(), ids, ids, lambda kept: gradient_uniqueness(gram[kept][:, kept], 0.1)
        )
        return clipped[decision.kept].sum(dim=0)

    alone = released_sum(torch.cat([outlier[None], crowd]))
    with_twin = released_sum(torch.cat([outlier[None], outlier[None], crowd]))
    assert float((with_twin - alone).norm()) == pytest.approx(2.0)


def test_rules_check_their_words() -> None:
    with pytest.raises(ValueError, match="unknown statistic"):
        CensorRule(statistic="gnq")
    with pytest.raises(ValueError, match="max_fraction"):
        CensorRule(max_fraction=0.0)


def test_a_statistic_of_one_step_is_held_against_everybody_drawn() -> None:
    """Batches smaller than ``minimum_drawn`` must not put the rule to sleep for ever."""
    ledger = ledger_with([1.0] * 60)
    rule = CensorRule(statistic="step_gnq", threshold=MedianMultiple(3.0, minimum_drawn=50))
    assert rule.over_budget(ledger, torch.tensor([0, 1]), torch.tensor([2.0, 4.0])).tolist() == [False, True]


def test_the_control_counts_what_the_censor_would_drop_in_all() -> None:
    """The censor's second look, at those that hid behind an outlier, belongs to the count."""
    along = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    gradients = torch.stack([30 * along, 10 * along, *(0.3 * torch.eye(3, dtype=torch.float64))])
    gram, ids = gradients @ gradients.T, torch.arange(5)
    rule = CensorRule(threshold=AbsoluteThreshold(float(gnq_scores(gram, 100.0)[1]) * 1.5))

    def score(kept: torch.Tensor) -> Any:
        return gradient_uniqueness(gram[kept][:, kept], 100.0)

    for censor in (GnqCensor(rule), RandomCensor(rule)):
        assert censor.decide(DisclosureLedger(), ids, ids, score).dropped.numel() == 2


def test_a_nan_of_an_example_censored_before_does_no_harm() -> None:
    x, y, index = examples()
    censor = ScriptedCensor({0: 0})
    x[0] = float("nan")
    module = ToyModule(lambda p: torch.optim.SGD(p, lr=0.1))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y, index), batch_size=6)
    fit(module, data, GradientUniqueness(**BY_INDEX, censor=censor))
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())
