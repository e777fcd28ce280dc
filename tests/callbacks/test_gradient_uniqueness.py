from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins.precision import MixedPrecision
from torch import nn

from gradient_disclosure import Damping, GradientUniqueness
from gradient_disclosure.callbacks.training_facts import refuse_unsupported_training
from gradient_disclosure.defenses.gnq_censor import CensorRule, GnqCensor
from gradient_disclosure.errors import (
    BatchCouplingError,
    DisclosureError,
    ExampleIdError,
    IncompleteGramError,
    NonFiniteGradientError,
    UnsupportedLayerError,
    UnsupportedTrainingError,
)
from gradient_disclosure.gram.reference import leave_one_out_gnq, per_example_gradients
from tests.toy import ToyModule, examples, fit, loader, network

BY_INDEX = {"example_ids": lambda batch: batch[2]}


def trained_weights(*callbacks: Any, optimizer: Any = None) -> list[torch.Tensor]:
    torch.manual_seed(3)
    module = ToyModule(optimizer)
    fit(module, loader(shuffle=True), *callbacks)
    return [p.detach().clone() for p in module.parameters()]


@pytest.mark.parametrize("optimizer", [None, lambda p: torch.optim.Adam(p, lr=1e-2)])
def test_training_is_bitwise_the_same_with_and_without(optimizer: Any) -> None:
    plain = trained_weights(optimizer=optimizer)
    audited = trained_weights(GradientUniqueness(**BY_INDEX), optimizer=optimizer)
    assert all(torch.equal(a, b) for a, b in zip(plain, audited, strict=True))


@pytest.mark.parametrize("damping", [Damping(1e-2), Damping(0.3, "relative")])
def test_ledger_equals_a_hand_written_audit(damping: Damping) -> None:
    """Every step's scores by the literal definition, from gradients taken one example at a time."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    torch.manual_seed(0)
    module = ToyModule(net=net)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    audit = GradientUniqueness(damping, **BY_INDEX, known_ids=20)
    fit(module, loader(dtype=torch.float64), audit, epochs=2)

    x, y, index = examples(dtype=torch.float64)
    again = ToyModule(net=net)
    again.load_state_dict(state)
    optimizer = again.configure_optimizers()
    total, maximum, norms, drawn = (torch.zeros(20, dtype=torch.float64) for _ in range(4))
    for _ in range(2):
        for ids in index.split(6):
            inputs, labels = x[ids], y[ids]
            g = per_example_gradients(
                again.net, lambda m, i, a=inputs, b=labels: F.cross_entropy(m(a[i : i + 1]), b[i : i + 1]), len(ids)
            )
            scale = float(g.square().sum(dim=1).mean())
            lam = damping.value * (scale if damping.kind == "relative" else 1.0)
            scores = leave_one_out_gnq(g, lam)
            total[ids] += scores
            maximum[ids] = torch.maximum(maximum[ids], scores)
            norms[ids] += g.square().sum(dim=1)
            drawn[ids] += 1
            optimizer.zero_grad()
            F.cross_entropy(again.net(inputs), labels).backward()
            optimizer.step()
    frame = audit.ledger.to_frame()
    assert frame["index"].tolist() == list(range(20))
    for column, expected in (
        ("gnq_total", total),
        ("gnq_max", maximum),
        ("squared_norm_total", norms),
        ("n_drawn", drawn),
    ):
        torch.testing.assert_close(torch.tensor(frame[column].to_numpy()).double(), expected, rtol=1e-8, atol=0)
    assert audit.ledger.n_steps == 8
    assert audit.coverage == 1.0


def test_exposure_is_inferred_from_the_loader() -> None:
    audit = GradientUniqueness(**BY_INDEX, membership_prior=0.25)
    fit(ToyModule(), loader(batch_size=5), audit, epochs=1)
    assert audit.ledger.exposure is not None
    assert audit.ledger.exposure.sampling.rate == 0.25
    assert audit.ledger.exposure.sampling.prior == 0.25
    assert not audit.ledger.exposure.poisson


def test_without_ids_it_says_so_once_and_logs_statistics(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = GradientUniqueness()
    with caplog.at_level(logging.WARNING):
        trainer = fit(ToyModule(), loader(), audit, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    assert sum("no example_ids" in record.message for record in caplog.records) == 1
    assert len(audit.ledger) == 0
    logged = trainer.logged_metrics
    assert float(logged["disclosure/gnq_max"]) >= float(logged["disclosure/gnq_mean"]) > 0
    assert float(logged["disclosure/damping"]) == pytest.approx(0.01)
    assert 0 < float(logged["disclosure/effective_rank"]) <= 6


def test_nothing_is_left_on_the_module() -> None:
    module = ToyModule()
    before = {name: set(vars(m)) for name, m in module.named_modules()}
    fit(module, loader(), GradientUniqueness(**BY_INDEX))
    assert {name: set(vars(m)) for name, m in module.named_modules() if name} == {k: v for k, v in before.items() if k}
    assert not any(m._forward_hooks for m in module.modules())
    assert not any(p._backward_hooks for p in module.parameters())


class Broken(ToyModule):
    """Fails in the middle of a step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        super().training_step(batch, batch_idx)
        raise RuntimeError("user's own error")


def test_nothing_is_left_after_an_exception() -> None:
    module = Broken()
    with pytest.raises(RuntimeError, match="user's own error"):
        fit(module, loader(), GradientUniqueness(**BY_INDEX))
    assert not any(m._forward_hooks for m in module.modules())
    assert not any(p._backward_hooks for p in module.parameters())


def test_nan_names_step_and_examples() -> None:
    x, y, index = examples()
    x[3, 0] = float("nan")
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y, index), batch_size=4)
    with pytest.raises(NonFiniteGradientError, match=r"step 0: NaN.*positions \[3\].*\[0, 1, 2, 3\]"):
        fit(ToyModule(), data, GradientUniqueness(**BY_INDEX))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (lambda batch: torch.zeros(len(batch[0]), dtype=torch.int64), "more than once"),
        (lambda batch: batch[2] + 1000, r"unknown.*0 … 19"),
        (lambda batch: batch[2] - 1, "unknown"),
        (lambda batch: batch[2][:2], "for a batch of 6 examples"),
        (lambda batch: batch[2].float(), "integers"),
        (lambda batch: batch[2].tolist(), "list for a batch of 6"),
    ],
)
def test_bad_ids_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(ExampleIdError, match=message):
        fit(ToyModule(), loader(), GradientUniqueness(example_ids=ids, known_ids=20))


class NoisyGain(nn.Module):
    """Its parameter is used through random numbers, which nobody can draw again example by example."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * F.dropout(self.gain, 0.5)


@pytest.mark.parametrize(("accumulated", "sizes"), [(2, [12, 8]), (3, [18, 2])])
def test_accumulated_batches_are_one_step(accumulated: int, sizes: list[int]) -> None:
    """The ledger of accumulated steps is that of the literal definition over all their examples."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    module = ToyModule(lambda p: torch.optim.SGD(p, lr=0.0), net=net)
    audit = GradientUniqueness(0.1, **BY_INDEX, known_ids=20)
    fit(module, loader(dtype=torch.float64), audit, epochs=1, accumulate_grad_batches=accumulated)
    x, y, index = examples(dtype=torch.float64)
    expected = torch.zeros(20, dtype=torch.float64)
    gradients = per_example_gradients(net, lambda m, i: F.cross_entropy(m(x[i : i + 1]), y[i : i + 1]), 20)
    for step in torch.split(index, sizes):
        expected[step] = leave_one_out_gnq(gradients[step], 0.1)
    torch.testing.assert_close(audit.ledger.totals_of(index, "gnq_total"), expected)
    assert audit.ledger.n_steps == len(sizes)
    assert audit.ledger.exposure is not None
    assert audit.ledger.exposure.sampling.rate == pytest.approx(1 / len(sizes))


def test_accumulated_training_is_bitwise_the_same_with_and_without() -> None:
    def weights(*callbacks: Any) -> list[torch.Tensor]:
        torch.manual_seed(3)
        module = ToyModule()
        fit(module, loader(shuffle=True), *callbacks, accumulate_grad_batches=2)
        return [p.detach().clone() for p in module.parameters()]

    plain, audited = weights(), weights(GradientUniqueness(**BY_INDEX))
    assert all(torch.equal(a, b) for a, b in zip(plain, audited, strict=True))


def test_what_accumulation_does_not_go_with_is_refused() -> None:
    censor = GnqCensor(CensorRule())
    with pytest.raises(UnsupportedTrainingError, match="accumulate_grad_batches=1"):
        fit(ToyModule(), loader(), GradientUniqueness(**BY_INDEX, censor=censor), accumulate_grad_batches=2)
    with pytest.raises(UnsupportedTrainingError, match="Poisson"):
        refuse_unsupported_training(
            SimpleNamespace(
                accumulate_grad_batches=2,
                world_size=1,
                train_dataloader=SimpleNamespace(plan=SimpleNamespace(is_poisson=True)),
            ),
            ToyModule(),
        )


def test_steps_that_the_gradient_scaler_skips_are_not_scored() -> None:
    module = ToyModule(lambda p: torch.optim.SGD(p, lr=0.01))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=10_000)
    audit = GradientUniqueness(**BY_INDEX)
    fit(module, loader(), audit, epochs=8, plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
    assert 0 < audit.skipped_steps < 8 * 4
    assert audit.ledger.n_steps == 8 * 4 - audit.skipped_steps
    assert scaler.get_scale() == 2.0 ** (24 - audit.skipped_steps)
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


def test_set_ups_that_would_be_audited_wrongly_are_refused() -> None:
    batch_norm = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(BatchCouplingError, match=r"net\.1.*GroupNorm"):
        fit(ToyModule(net=batch_norm), loader(), GradientUniqueness())
    noisy = nn.Sequential(network(), NoisyGain())
    with pytest.raises(UnsupportedLayerError, match=r"net\.1\.gain"):
        fit(ToyModule(net=noisy), loader(), GradientUniqueness())

    manual = ToyModule()
    manual.automatic_optimization = False
    with pytest.raises(UnsupportedTrainingError, match="manual"):
        fit(manual, loader(), GradientUniqueness())


def test_state_survives_a_safe_load(tmp_path: Path) -> None:
    audit = GradientUniqueness(**BY_INDEX)
    fit(ToyModule(), loader(), audit)
    torch.save(audit.state_dict(), tmp_path / "state.pt")
    restored = GradientUniqueness(**BY_INDEX)
    restored.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert restored.ledger.to_frame().equals(audit.ledger.to_frame())
    assert restored.statistics == audit.statistics
    assert restored.ledger.exposure == audit.ledger.exposure


def test_importing_the_callback_pulls_in_no_optional_package() -> None:
    code = (
        "import sys; from gradient_disclosure import GradientUniqueness; import lightning; "
        "bad = {'opacus', 'lpips', 'wandb', 'hydra', 'omegaconf', 'skimage', 'pandas'} & set(sys.modules); "
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_gram_needs_torch_alone() -> None:
    code = "import sys; from gradient_disclosure import GradientGram; assert 'lightning' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def exposure_after(data: Any, **options: Any) -> Any:
    audit = GradientUniqueness(**BY_INDEX)
    fit(ToyModule(), data, audit, epochs=1, **options)
    return audit.ledger.exposure


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(*examples(), strict=True))


def test_the_sampling_rate_is_that_of_one_example(caplog: pytest.LogCaptureFixture) -> None:
    assert exposure_after(loader(n=20, batch_size=6)).sampling.rate == pytest.approx(1 / 4)  # 6, 6, 6, 2
    assert exposure_after(loader(n=20, batch_size=6, drop_last=True)).sampling.rate == pytest.approx(6 / 20)
    assert exposure_after(loader(n=20, batch_size=2), limit_train_batches=3).sampling.rate == pytest.approx(2 / 20)
    assert exposure_after(loader(n=4, batch_size=6)).sampling.rate == 1.0
    with caplog.at_level(logging.WARNING):
        assert exposure_after(torch.utils.data.DataLoader(Stream(), batch_size=6)) is None
    assert any("no bits" in record.message for record in caplog.records)


def test_one_ledger_holds_one_way_of_drawing() -> None:
    audit = GradientUniqueness(**BY_INDEX)
    fit(ToyModule(), loader(batch_size=6), audit)
    fit(ToyModule(), loader(batch_size=6), audit)
    with pytest.raises(UnsupportedTrainingError, match="fresh GradientUniqueness"):
        fit(ToyModule(), loader(batch_size=2), audit)


def test_a_batch_of_zero_gradients_is_audited() -> None:
    class Constant(ToyModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) * 0.0

    audit = GradientUniqueness(**BY_INDEX)
    fit(Constant(), loader(), audit, epochs=1)
    assert audit.ledger.to_frame()["gnq_total"].tolist() == [0.0] * 20
    assert audit.statistics.zero_steps == 4
    assert audit.statistics.means() == {}


class UnseenProduct(torch.autograd.Function):
    """A linear map whose use of a parameter nothing sees."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return e @ weight, e.T @ x


def test_a_parameter_used_unseen_is_found_when_its_gradient_wakes() -> None:
    """Behind a head initialized to zero the first check compares zeros; it must not be the last."""

    class Sneaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(6, 6), nn.Linear(6, 3)
            nn.init.zeros_(self.head.weight)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.fc(x)) + UnseenProduct.apply(x, self.fc.weight))

    with pytest.raises(IncompleteGramError, match=r"net\.fc\.weight.*do not add up"):
        fit(ToyModule(net=Sneaky()), loader(), GradientUniqueness(**BY_INDEX))


@pytest.mark.parametrize("reduce", ["sum", "none"])
def test_a_sum_taken_for_a_mean_is_refused(reduce: str) -> None:
    class Summed(ToyModule):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            losses = F.cross_entropy(self.net(batch[0]), batch[1], reduction=reduce)
            return losses.sum() if reduce == "none" else losses

    with pytest.raises(UnsupportedTrainingError, match="loss_reduction='sum'"):
        fit(Summed(), loader(), GradientUniqueness(**BY_INDEX))
    right = GradientUniqueness(**BY_INDEX, loss_reduction="sum")
    fit(Summed(lambda p: torch.optim.SGD(p, lr=0.0)), loader(), right, epochs=1)
    assert len(right.ledger) == 20


def test_a_pattern_that_excludes_nothing_is_a_typo() -> None:
    with pytest.raises(DisclosureError, match=r"net\.7.*matches no parameter.*net\.0\.weight"):
        fit(ToyModule(), loader(), GradientUniqueness(exclude=["net.7.*"]))


def test_damping_is_checked_at_once() -> None:
    with pytest.raises(ValueError, match="must be a number"):
        GradientUniqueness(damping=None)  # type: ignore[arg-type]
