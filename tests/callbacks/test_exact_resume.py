from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, TensorDataset

from gradient_disclosure.callbacks.exact_resume import ExactResume
from gradient_disclosure.data.bundle import Examples
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.batches import ShuffledBatches
from gradient_disclosure.training.loader import BatchLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step`"),
]

STEPS_PER_EPOCH, EPOCHS = 4, 3
STEPS = STEPS_PER_EPOCH * EPOCHS
BY_EPOCHS, BY_STEPS = {"max_epochs": EPOCHS}, {"max_epochs": -1, "max_steps": STEPS}


class DropoutNet(pl.LightningModule):
    """Draws from torch's, numpy's and Python's generators in each training step, and from torch's in validation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        scale = 1.0 + random.random() + np.random.rand()
        return scale * nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        torch.rand(5)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.9)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class KilledError(Exception):
    """Stands for the end of the process."""


class Witness(Callback):
    """Records the indices of each batch, and kills the run in the hook and at the step asked for."""

    def __init__(self, kill: tuple[str, int] | None = None) -> None:
        self.seen: list[list[int]] = []
        self.kill = kill

    def die(self, hook: str, trainer: pl.Trainer) -> None:
        if self.kill == (hook, trainer.global_step):
            raise KilledError

    def on_train_batch_start(self, trainer: pl.Trainer, module: pl.LightningModule, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch[2].tolist())
        self.die("start", trainer)

    def on_before_zero_grad(self, trainer: pl.Trainer, module: pl.LightningModule, optimizer: Any) -> None:
        self.die("middle", trainer)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        self.die("end", trainer)

    def on_validation_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.die("validation", trainer)


@dataclass
class Run:
    weights: dict[str, Tensor]
    optimizer: dict[str, Any]
    schedule: dict[str, Any]
    seen: list[list[int]]


def identical(a: Any, b: Any) -> bool:
    x, y = tree_leaves(a), tree_leaves(b)
    pairs = zip(x, y, strict=True) if len(x) == len(y) else [(0, 1)]
    return all(torch.equal(i, j) if isinstance(i, Tensor) else i == j for i, j in pairs)


def train(
    folder: Path,
    resume_from: Path | None = None,
    *,
    kill: tuple[str, int] | None = None,
    exact: bool = True,
    validate: bool = True,
    limits: dict[str, int] | None = None,
    checkpoints: dict[str, Any] | None = None,
    extra: Sequence[Callback] = (),
    callback: ExactResume | None = None,
    options: dict[str, Any] | None = None,
) -> Run:
    generator = torch.Generator().manual_seed(0)
    pool = Examples(torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator))
    plan = ShuffledBatches(torch.arange(0, 38, 2), batch_size=5, seed=1)
    # A process that starts again has other random states, and other initial weights until the checkpoint is loaded.
    pl.seed_everything(0 if resume_from is None else 1234, verbose=False)
    module, witness = DropoutNet(), Witness(kill)
    saver = ModelCheckpoint(
        dirpath=folder, filename="{step}", save_top_k=-1, **(checkpoints or {"every_n_train_steps": 1})
    )
    trainer = pl.Trainer(
        accelerator="cpu",
        callbacks=[witness, *([callback or ExactResume()] if exact else []), *extra, saver],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **(BY_EPOCHS if limits is None else limits),
        **(options or {}),
    )
    held_out = DataLoader(TensorDataset(pool.inputs), batch_size=16, shuffle=True) if validate else None
    try:
        trainer.fit(module, BatchLoader(pool, plan), held_out, ckpt_path=resume_from, weights_only=True)
    except KilledError:
        assert kill is not None
    optimizer, schedule = trainer.optimizers[0], trainer.lr_scheduler_configs[0].scheduler
    return Run(module.state_dict(), optimizer.state_dict(), schedule.state_dict(), witness.seen)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    return train(folder), folder


def assert_same_end(run: Run, reference: Run, steps_done: int) -> None:
    assert run.seen == reference.seen[steps_done:]
    assert identical(run.weights, reference.weights)
    assert identical(run.optimizer, reference.optimizer)
    assert identical(run.schedule, reference.schedule)


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_resume_from_any_step_is_bitwise(uninterrupted: tuple[Run, Path], tmp_path: Path, step: int) -> None:
    reference, folder = uninterrupted
    assert len(reference.seen) == STEPS
    assert_same_end(train(tmp_path, folder / f"step={step}.ckpt"), reference, step)


@pytest.mark.parametrize(
    ("kill", "last_checkpoint"),
    [
        (("start", 2), 2),
        (("middle", 3), 2),
        (("end", 3), 2),
        (("start", 4), 4),  # first batch of the second epoch
        (("validation", 4), 4),  # after the last batch of the first epoch
        (("end", 5), 4),
        (("middle", 7), 6),  # last batch of the second epoch
    ],
)
def test_killed_run_is_bitwise(
    uninterrupted: tuple[Run, Path], tmp_path: Path, kill: tuple[str, int], last_checkpoint: int
) -> None:
    every = {"every_n_train_steps": 2}
    train(tmp_path, kill=kill, checkpoints=every)
    last = max(tmp_path.glob("*.ckpt"), key=lambda path: int(path.stem.removeprefix("step=")))
    assert last.name == f"step={last_checkpoint}.ckpt"
    assert_same_end(train(tmp_path, last, checkpoints=every), uninterrupted[0], last_checkpoint)


@pytest.mark.parametrize("limits", [BY_EPOCHS, BY_STEPS])
@pytest.mark.parametrize(("first", "second"), [(2, 3), (4, 5), (4, 8), (4, 9), (8, 10)])
def test_killed_twice_is_bitwise(
    uninterrupted: tuple[Run, Path], tmp_path: Path, limits: dict[str, int], first: int, second: int
) -> None:
    reference, folder = uninterrupted
    if limits is BY_STEPS:
        reference, folder = train(tmp_path / "reference", limits=limits), tmp_path / "reference"
    train(tmp_path, folder / f"step={first}.ckpt", kill=("start", second), limits=limits)
    assert_same_end(train(tmp_path / "end", tmp_path / f"step={second}.ckpt", limits=limits), reference, second)


@pytest.mark.parametrize(
    ("options", "checkpoints", "steps"),
    [
        ({}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}, 4),
        ({}, {"every_n_epochs": 1, "save_on_train_epoch_end": False}, 8),  # at the end of validation
        ({"val_check_interval": 2}, {"every_n_epochs": 1, "save_on_train_epoch_end": False}, 6),
        ({"val_check_interval": 2}, {"every_n_train_steps": 2}, 6),
    ],
)
def test_other_moments_to_save(
    uninterrupted: tuple[Run, Path],
    tmp_path: Path,
    options: dict[str, Any],
    checkpoints: dict[str, Any],
    steps: int,
) -> None:
    reference = train(tmp_path, options=options, checkpoints=checkpoints)
    run = train(tmp_path / "end", tmp_path / f"step={steps}.ckpt", options=options, checkpoints=checkpoints)
    assert_same_end(run, reference, steps)
    assert identical(reference.weights, uninterrupted[0].weights)  # how often is validated does not matter


def test_validation_and_callbacks_do_not_reach_the_training(uninterrupted: tuple[Run, Path], tmp_path: Path) -> None:
    class Drawing(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            torch.rand(3)

        def on_train_epoch_end(self, *args: Any) -> None:
            torch.rand(3)

    assert identical(train(tmp_path / "a", validate=False).weights, uninterrupted[0].weights)
    assert identical(train(tmp_path / "b", extra=[Drawing()]).weights, uninterrupted[0].weights)


def test_a_callback_used_again_starts_afresh(uninterrupted: tuple[Run, Path], tmp_path: Path) -> None:
    callback = ExactResume()
    train(tmp_path / "a", callback=callback, kill=("end", 3))
    assert identical(train(tmp_path / "b", callback=callback).weights, uninterrupted[0].weights)


def test_state_that_is_saved_before_the_first_step_is_the_restored_one() -> None:
    saved = ExactResume().state_dict()
    random.random(), np.random.rand(), torch.rand(())
    callback = ExactResume()
    callback.load_state_dict(saved)
    assert identical(callback.state_dict(), saved)


def test_without_the_callback_a_resumed_run_ends_elsewhere(uninterrupted: tuple[Run, Path], tmp_path: Path) -> None:
    # Shows that the tests above can fail: same batches, other dropout masks.
    reference = train(tmp_path, exact=False)
    run = train(tmp_path / "end", tmp_path / "step=6.ckpt", exact=False)
    assert run.seen == reference.seen[6:]
    assert not identical(run.weights, reference.weights)


def test_another_loader_is_refused(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64), torch.arange(8))
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", callbacks=[ExactResume()], logger=False, default_root_dir=tmp_path
    )
    with pytest.raises(UnsupportedTrainingError, match=r"keep its promise with a DataLoader.*BatchLoader"):
        trainer.fit(DropoutNet(), DataLoader(data, batch_size=4))


def test_state_of_another_kind_of_device_is_refused(tmp_path: Path) -> None:
    callback = ExactResume()
    callback.load_state_dict(callback.state_dict())
    callback._device = torch.device("meta")
    with pytest.raises(UnsupportedTrainingError, match="written on cpu, but training goes on on meta"):
        callback.on_train_batch_start(None, None, None, 0)  # type: ignore[arg-type]
