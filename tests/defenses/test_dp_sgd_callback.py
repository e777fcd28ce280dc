from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from opacus.accountants import PRVAccountant, RDPAccountant
from scipy import stats
from torch import Tensor, nn

from gradient_disclosure.callbacks.exact_resume import ExactResume
from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.errors import NonFiniteGradientError, UnsupportedTrainingError
from gradient_disclosure.training.batches import PoissonBatches
from gradient_disclosure.training.loader import BatchLoader
from tests.defenses.dp_sgd_training import (
    Batch,
    Module,
    NoGradient,
    Weights,
    copies,
    fit,
    network,
    pool,
    traces_of_opacus,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
]

WIDE = 3000  # parameters are 4 * WIDE + WIDE: enough for narrow intervals of the noise's variance


def wide_module(**options: Any) -> NoGradient:
    return NoGradient(nn.Linear(4, WIDE), **options)


def standard_deviations(updates: list[Tensor], expected: float) -> None:
    """Each update is noise of this standard deviation and mean 0, by intervals with an error of 1e-6."""
    for update in updates:
        low, high = stats.chi2.interval(1 - 1e-6, update.numel())
        assert low <= float((update / expected).double().square().sum()) <= high
        assert abs(float(update.double().mean())) < 5 * expected / math.sqrt(update.numel())


# ---------------------------------------------------------------- what a step does


@pytest.mark.parametrize(("clip_norm", "clips"), [(0.05, {True}), (1.4, {True, False}), (100.0, {False})])
def test_step_is_the_clipped_sum_over_the_expected_batch_size(
    tmp_path: Path, clip_norm: float, clips: set[bool]
) -> None:
    torch.manual_seed(0)
    module, weights, members = Module(), Weights(), torch.arange(23)
    module.double()
    defense = DPSGD(clip_norm=clip_norm, noise_multiplier=0.0)
    reference = [p.detach().clone().requires_grad_() for p in module.parameters()]
    fit(module, defense, tmp_path, members=members, batch_size=5, callbacks=[weights], max_steps=1, precision="64-true")

    data, (index, *_) = pool(), defense.plan(members, 5, 0).batches(0)
    clipped = torch.zeros(sum(p.numel() for p in reference), dtype=torch.float64)
    clipped_any = set()
    for i in index.tolist():
        first, bias, last, last_bias = reference
        hidden = torch.tanh(data.inputs[i].double() @ first.T + bias)
        loss = -torch.log_softmax(hidden @ last.T + last_bias, dim=0)[data.labels[i]]
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, reference)])
        norm = float(gradient.norm())
        clipped_any.add(norm > clip_norm)
        clipped += gradient * min(1.0, clip_norm / (norm + 1e-6))  # Opacus keeps a margin of 1e-6 in the norm
    assert clipped_any == clips
    # 23 members in 5 steps: 4.6 a step, which Opacus would truncate to 4.
    torch.testing.assert_close(weights.updates()[0], -clipped / 4.6, rtol=1e-10, atol=1e-14)


def test_noise_has_the_stated_size_and_is_fresh_at_each_step(tmp_path: Path) -> None:
    weights = Weights()
    module = wide_module(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    defense = DPSGD(clip_norm=2.0, noise_multiplier=1.5)
    callback, _ = fit(module, defense, tmp_path, members=torch.arange(20), batch_size=3, callbacks=[weights])
    updates = weights.updates()
    assert len(updates) == 7
    standard_deviations(updates, 0.1 * 1.5 * 2.0 / (20 / 7))
    # Correlation of independent noise is about 1/sqrt(15000) = 0.008.
    correlation = torch.corrcoef(torch.stack(updates)) - torch.eye(7)
    assert correlation.abs().max() < 0.05
    assert callback.mechanism().clip_norm == 2.0
    assert callback.mechanism().noise_multiplier == 1.5


def test_noise_depends_on_its_seed_alone(tmp_path: Path) -> None:
    defense = DPSGD(clip_norm=1.0, noise_multiplier=1.0)

    def update(*, noise: int, sampler: int, everything_else: int) -> Tensor:
        module, weights = wide_module(), Weights()
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        loader = BatchLoader(pool(), defense.plan(torch.arange(20), 8, sampler))
        torch.manual_seed(everything_else)
        fit(module, defense, tmp_path, seed=noise, loader=loader, callbacks=[weights], max_steps=1)
        return weights.updates()[0]

    first = update(noise=0, sampler=0, everything_else=1)
    assert torch.equal(first, update(noise=0, sampler=5, everything_else=2))
    other = update(noise=1, sampler=0, everything_else=1)
    assert abs(float(torch.corrcoef(torch.stack([first, other]))[0, 1])) < 0.05


def test_learning_rate_schedule_acts_on_the_private_step(tmp_path: Path) -> None:
    def optimizer(parameters: Any) -> Any:
        sgd = torch.optim.SGD(parameters, lr=1.0)
        return {
            "optimizer": sgd,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.1), "interval": "step"},
        }

    weights = Weights()
    _, trainer = fit(
        wide_module(optimizer=optimizer),
        DPSGD(clip_norm=1.0, noise_multiplier=1.0),
        tmp_path,
        members=torch.arange(20),
        batch_size=10,
        callbacks=[weights],
    )
    first, second = weights.updates()
    standard_deviations([first], 1.0 / 10)
    standard_deviations([second], 0.1 / 10)
    assert trainer.lr_scheduler_configs[0].scheduler.optimizer is trainer.optimizers[0]


# ---------------------------------------------------------------- empty batches, NaN


@pytest.mark.parametrize("adam", [False, True])
def test_empty_batch_takes_a_step_of_noise_alone(tmp_path: Path, adam: bool) -> None:
    class Wide(Module):
        def loss(self, batch: Batch) -> Tensor:
            return self.net(batch[0]).square().mean()

    defense, members = DPSGD(clip_norm=1.0, noise_multiplier=2.0), torch.arange(6)
    weights = Weights()
    convolutions = [nn.Conv2d(1, 4, 2), nn.GroupNorm(2, 4), nn.ConvTranspose2d(4, 4, 1)]  # Opacus fails on the last
    module = Wide(
        nn.Sequential(nn.Unflatten(1, (1, 2, 2)), *convolutions, nn.Flatten(), nn.Linear(4, WIDE)),
        optimizer=torch.optim.Adam if adam else lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    )
    callback, _ = fit(module, defense, tmp_path, members=members, batch_size=1, callbacks=[weights], max_epochs=2)
    empty = [step for step, size in enumerate(weights.sizes) if size == 0]
    assert 1 <= len(empty) < 12
    assert all(math.isnan(module.losses[step]) == (step in empty) for step in range(12))
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())
    assert callback.summary()["steps"] == 12  # the empty ones are accounted too
    if not adam:
        standard_deviations([weights.updates()[step] for step in empty], 0.5 * 2.0)


def test_nan_in_an_input_stops_before_the_weights_change(tmp_path: Path) -> None:
    data, weights, module = pool(), Weights(), Module()
    data.inputs[6, 1] = math.nan
    defense = DPSGD(clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(NonFiniteGradientError, match=r"The loss is nan at step \d+, on examples \[.*\b6\b.*\]"):
        fit(module, defense, tmp_path, data=data, callbacks=[weights], max_epochs=20)
    assert all(torch.equal(a, b) for a, b in zip(copies(module), weights.after[-1], strict=True))
    assert traces_of_opacus(module) == []


def test_nan_gradient_of_a_finite_loss_names_the_example(tmp_path: Path) -> None:
    class Root(Module):
        def loss(self, batch: Batch) -> Tensor:
            return self.net(batch[0]).square().sum(dim=1).sqrt().mean()  # its derivative at 0 is NaN

    data, weights = pool(), Weights()
    data.inputs[6] = 0.0
    module = Root(nn.Linear(4, 3, bias=False))
    with pytest.raises(NonFiniteGradientError, match=r"not finite at step \d+, because of \[6\]"):
        fit(module, DPSGD(clip_norm=1.0, noise_multiplier=1.0), tmp_path, data=data, callbacks=[weights], max_epochs=20)
    assert all(torch.equal(a, b) for a, b in zip(copies(module), weights.after[-1], strict=True))


# ---------------------------------------------------------------- epsilon


def test_epsilon_is_that_of_the_accountants_for_the_same_steps(tmp_path: Path) -> None:
    history = [(1.3, 1 / 7, 21)]
    bounds = {}
    for name, reference in {"prv": PRVAccountant(), "rdp": RDPAccountant()}.items():
        reference.history = list(history)
        defense = DPSGD(clip_norm=1.0, noise_multiplier=1.3, accountant=name)
        callback, _ = fit(Module(), defense, tmp_path, members=torch.arange(20), batch_size=3, max_epochs=3)
        assert callback.epsilon() == pytest.approx(reference.get_epsilon(1 / 200), rel=1e-9)
        assert callback.epsilon(delta=1e-3) == pytest.approx(reference.get_epsilon(1e-3), rel=1e-9)
        bounds[name] = callback.epsilon()
        assert callback.summary() == {
            "epsilon": callback.epsilon(),
            "delta": 1 / 200,
            "noise_multiplier": 1.3,
            "clip_norm": 1.0,
            "sampling_rate": 1 / 7,
            "steps": 21,
            "accountant": name,
        }
    assert bounds["prv"] < bounds["rdp"] < 1.5 * bounds["prv"]


@pytest.mark.parametrize(
    ("limits", "steps"),
    [({"max_epochs": 3}, 21), ({"max_steps": 5}, 5), ({"max_epochs": 3, "limit_train_batches": 2}, 6)],
)
def test_budget_is_met_for_the_real_number_of_steps(tmp_path: Path, limits: dict[str, int], steps: int) -> None:
    defense = DPSGD(clip_norm=1.0, target_epsilon=3.0, delta=1e-4, accountant="rdp")
    callback, _ = fit(Module(), defense, tmp_path, members=torch.arange(20), batch_size=3, **limits)
    reference = RDPAccountant()
    reference.history = [(callback.summary()["noise_multiplier"], 1 / 7, steps)]
    assert callback.summary()["steps"] == steps
    assert 2.98 < reference.get_epsilon(1e-4) <= 3.0
    assert callback.epsilon() == pytest.approx(reference.get_epsilon(1e-4))


def test_budget_without_a_number_of_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedTrainingError, match="max_epochs or max_steps"):
        fit(Module(), DPSGD(clip_norm=1.0, target_epsilon=3.0), tmp_path, max_epochs=-1)


def test_nothing_is_known_before_training() -> None:
    with pytest.raises(UnsupportedTrainingError, match="once training has started"):
        DPSGD(clip_norm=1.0, noise_multiplier=1.0).callback(seed=0).epsilon()


# ---------------------------------------------------------------- other callbacks, and what is left behind


class Observer(Callback):
    """Per-example inputs and output gradients of the last layer, and ``p.grad`` at each hook, of the first step."""

    def __init__(self) -> None:
        self.seen: dict[str, Tensor] = {}
        self.handles: list[Any] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        def forward_hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            self.note("input", inputs[0])
            output.register_hook(lambda gradient: self.note("output gradient", gradient))

        self.handles.append(pl_module.net[2].register_forward_hook(forward_hook))

    def note(self, name: str, value: Tensor) -> None:
        self.seen.setdefault(name, value.detach().clone())

    def on_after_backward(self, trainer: pl.Trainer, pl_module: Any) -> None:
        self.note("gradient after backward", pl_module.net[0].weight.grad)

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: Any) -> None:
        self.note("gradient before the step", pl_module.net[0].weight.grad)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *args: Any) -> None:
        self.note("gradient after the step", pl_module.net[0].weight.grad)
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("observer_first", [False, True])
def test_other_callbacks_see_the_plain_gradients_of_the_step(tmp_path: Path, observer_first: bool) -> None:
    plain, private = Observer(), Observer()
    defense = DPSGD(clip_norm=0.1, noise_multiplier=1.0)
    loader = BatchLoader(pool(), defense.plan(torch.arange(0, 40, 2), 8, 0))
    torch.manual_seed(0)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    pl.Trainer(max_steps=1, accelerator="cpu", callbacks=[plain], default_root_dir=tmp_path, **quiet).fit(
        Module(), loader
    )
    torch.manual_seed(0)
    callback = defense.callback(seed=0)
    callbacks = [private, callback] if observer_first else [callback, private]
    pl.Trainer(max_steps=1, accelerator="cpu", callbacks=callbacks, default_root_dir=tmp_path, **quiet).fit(
        Module(), loader
    )
    for name in ("input", "output gradient", "gradient after backward", "gradient before the step"):
        assert torch.equal(private.seen[name], plain.seen[name]), name
    assert not torch.equal(private.seen["gradient after the step"], plain.seen["gradient after the step"])


def test_nothing_of_opacus_is_left_after_training(tmp_path: Path) -> None:
    module = Module(optimizer=torch.optim.Adam)
    _, trainer = fit(module, DPSGD(clip_norm=1.0, noise_multiplier=1.0), tmp_path)
    assert traces_of_opacus(module) == []
    (optimizer,) = trainer.optimizers
    assert type(optimizer) is torch.optim.Adam
    assert len(optimizer.state) == 4
    assert optimizer.state[module.net[0].weight]["step"] == 3


@pytest.mark.parametrize("hook", ["on_train_start", "on_before_backward", "on_after_backward", "on_train_batch_end"])
def test_nothing_of_opacus_is_left_after_an_error(tmp_path: Path, hook: str) -> None:
    class Failing(Callback):
        pass

    def fail(self: Callback, trainer: pl.Trainer, *args: Any) -> None:
        assert traces_of_opacus(module)
        raise ZeroDivisionError

    setattr(Failing, hook, fail)
    module = Module()
    with pytest.raises(ZeroDivisionError):
        fit(module, DPSGD(clip_norm=1.0, noise_multiplier=1.0), tmp_path, callbacks=[Failing()])
    assert traces_of_opacus(module) == []


def test_a_callback_serves_one_training_only(tmp_path: Path) -> None:
    defense = DPSGD(clip_norm=1.0, noise_multiplier=1.0)
    callback, _ = fit(Module(), defense, tmp_path)
    with pytest.raises(UnsupportedTrainingError, match="Make a fresh one"):
        fit(Module(), defense, tmp_path, callback=callback)


def test_a_step_that_is_not_accounted_is_an_error(tmp_path: Path) -> None:
    class Skipping(Module):
        def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
            optimizer_closure()

    with pytest.raises(UnsupportedTrainingError, match="override optimizer_step"):
        fit(Skipping(), DPSGD(clip_norm=1.0, noise_multiplier=1.0), tmp_path)


# ---------------------------------------------------------------- resume


class DropoutModule(Module):
    def __init__(self) -> None:
        super().__init__(nn.Sequential(*network(), nn.Dropout(0.5)), optimizer=torch.optim.Adam)


def resumable(
    folder: Path, defense: DPSGD, resume_from: Path | None = None, stop_at: int | None = None, **options: Any
) -> tuple[list[Tensor], Any]:
    class Stop(Callback):
        def on_before_zero_grad(self, trainer: pl.Trainer, *args: Any) -> None:
            if trainer.global_step == stop_at:
                raise KeyError("killed")

    saver = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    torch.manual_seed(0 if resume_from is None else 99)
    module = DropoutModule()
    callback = defense.callback(seed=4 if resume_from is None else 77)
    settings = {"members": torch.arange(20), "batch_size": 7, "max_epochs": 3, **options}
    callbacks = [ExactResume(), Stop(), saver]
    try:
        fit(
            module,
            defense,
            folder,
            resume_from=resume_from,
            callback=callback,
            callbacks=callbacks,
            enable_checkpointing=True,
            **settings,
        )
    except KeyError:
        assert stop_at is not None
    return copies(module), callback


@pytest.mark.parametrize("noise", [{"noise_multiplier": 1.2}, {"target_epsilon": 4.0}])
def test_resume_is_bitwise_and_ends_with_the_same_epsilon(tmp_path: Path, noise: dict[str, float]) -> None:
    defense = DPSGD(clip_norm=1.0, accountant="rdp", **noise)
    weights, callback = resumable(tmp_path / "whole", defense)
    for kill in (1, 3, 5, 6):  # three steps an epoch
        folder = tmp_path / str(kill)
        resumable(folder, defense, stop_at=kill)
        resumed, again = resumable(folder / "end", defense, folder / f"step={kill}.ckpt")
        assert all(torch.equal(a, b) for a, b in zip(resumed, weights, strict=True))
        assert again.summary() == callback.summary()
        assert again.summary()["steps"] == 9


@pytest.mark.parametrize(
    ("defense", "options", "message"),
    [
        (DPSGD(1.0, noise_multiplier=1.3), {}, "noise_multiplier 1.2 -> 1.3"),
        (DPSGD(1.5, noise_multiplier=1.2), {}, "clip_norm 1.0 -> 1.5"),
        (DPSGD(1.0, noise_multiplier=1.2, delta=1e-3), {}, "delta 0.005 -> 0.001"),
        (DPSGD(1.0, noise_multiplier=1.2), {"batch_size": 10}, "batch_size 7 -> 10"),
        (DPSGD(1.0, noise_multiplier=1.2, accountant="rdp"), {}, "accountant prv -> rdp"),
        (DPSGD(1.0, target_epsilon=8.0), {}, "target_epsilon None -> 8.0"),
    ],
)
def test_resume_with_other_privacy_settings_is_refused(
    tmp_path: Path, defense: DPSGD, options: dict[str, Any], message: str
) -> None:
    resumable(tmp_path, DPSGD(1.0, noise_multiplier=1.2), max_epochs=1)
    with pytest.raises(UnsupportedTrainingError, match=message):
        resumable(tmp_path / "end", defense, tmp_path / "step=3.ckpt", **options)


def test_a_budget_cannot_be_stretched_by_resuming_for_longer(tmp_path: Path) -> None:
    defense = DPSGD(1.0, target_epsilon=8.0, accountant="rdp")
    resumable(tmp_path, defense, max_epochs=1)
    with pytest.raises(UnsupportedTrainingError, match="planned_steps 3 -> 9"):
        resumable(tmp_path / "end", defense, tmp_path / "step=3.ckpt")


def test_given_noise_may_go_on_for_longer_and_costs_more(tmp_path: Path) -> None:
    defense = DPSGD(1.0, noise_multiplier=1.2, accountant="rdp")
    _, short = resumable(tmp_path, defense, max_epochs=1)
    _, long = resumable(tmp_path / "end", defense, tmp_path / "step=3.ckpt")
    assert (short.summary()["steps"], long.summary()["steps"]) == (3, 9)
    assert long.epsilon() > short.epsilon()


def test_going_on_from_a_training_without_privacy_is_refused(tmp_path: Path) -> None:
    loader = BatchLoader(pool(), PoissonBatches(torch.arange(20), 7, 0))
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path)
    trainer.fit(Module(), loader)
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(UnsupportedTrainingError, match="3 steps were taken before, but 0 are accounted"):
        fit(
            Module(),
            DPSGD(1.0, noise_multiplier=1.2),
            tmp_path,
            loader=loader,
            resume_from=tmp_path / "plain.ckpt",
            max_epochs=3,
        )


def test_noise_of_another_kind_of_device_is_refused(tmp_path: Path) -> None:
    resumable(tmp_path, DPSGD(1.0, noise_multiplier=1.2), max_epochs=1)
    checkpoint = torch.load(tmp_path / "step=3.ckpt", weights_only=True)
    checkpoint["callbacks"]["DPSGDCallback"]["device"] = "cuda"
    torch.save(checkpoint, tmp_path / "elsewhere.ckpt")
    with pytest.raises(UnsupportedTrainingError, match="generator on cuda"):
        resumable(tmp_path / "end", DPSGD(1.0, noise_multiplier=1.2), tmp_path / "elsewhere.ckpt")
