from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import Tensor, nn

from gradient_disclosure.data.bundle import Examples
from gradient_disclosure.errors import ExampleIdError, UnsupportedTrainingError
from gradient_disclosure.training.batches import PoissonBatches, ShuffledBatches
from gradient_disclosure.training.loader import BatchLoader

POOL = Examples(inputs=torch.arange(40.0).reshape(20, 2), labels=torch.arange(20) % 3)
MEMBERS = torch.arange(1, 20, 2)


def loader(batch_size: int = 3, seed: int = 0, members: Tensor = MEMBERS, kind: type = ShuffledBatches) -> BatchLoader:
    return BatchLoader(POOL, kind(members, batch_size, seed))


def indices(batches: Any) -> list[list[int]]:
    return [index.tolist() for _, _, index in batches]


def planned(of: BatchLoader, epoch: int) -> list[list[int]]:
    return [index.tolist() for index in of.plan.batches(epoch)]


@pytest.mark.parametrize("kind", [ShuffledBatches, PoissonBatches])
def test_batches_are_the_rows_of_the_plan(kind: type) -> None:
    batches = list(loader(kind=kind))
    assert len(batches) == len(loader()) == 4
    for inputs, labels, index in batches:
        assert torch.equal(inputs, torch.stack([2.0 * index, 2.0 * index + 1], dim=1))
        assert torch.equal(labels, index % 3)
        assert inputs.shape == (len(index), 2)


def test_dataset_is_the_members() -> None:
    dataset: Any = loader().dataset
    assert len(dataset) == 10
    inputs, label, index = dataset[4]
    assert (inputs.tolist(), int(label), int(index)) == ([18.0, 19.0], 0, 9)


def test_epoch_may_be_set_after_iter() -> None:
    batches = loader()
    iterator = iter(batches)
    batches.sampler.set_epoch(5)
    assert indices(iterator) == planned(batches, 5)


@pytest.mark.parametrize("done", [0, 1, 3, 4])
def test_a_loaded_state_goes_on_after_the_batches_that_were_handed_out(done: int) -> None:
    first = loader()
    first.set_epoch(2)
    iterator = iter(first)
    for _ in range(done):
        next(iterator)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = loader()
    second.load_state_dict(torch.load(file, weights_only=True))
    second.set_epoch(2)
    assert indices(second) == planned(first, 2)[done:]
    assert indices(second) == planned(first, 2)  # the position is used up
    second.set_epoch(3)
    assert indices(second) == planned(first, 3)


def test_a_loaded_position_does_not_apply_to_another_epoch() -> None:
    first = loader()
    list(first)
    second = loader()
    second.load_state_dict(first.state_dict())
    second.set_epoch(1)
    assert indices(second) == planned(first, 1)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (loader(batch_size=4), "batch_size 3 -> 4"),
        (loader(seed=1), "seed 0 -> 1"),
        (loader(members=MEMBERS[:-1]), "members 10 -> 9"),
        (loader(members=MEMBERS - 1), "members_checksum"),
        (loader(kind=PoissonBatches), "is_poisson 0 -> 1"),
    ],
)
def test_state_of_other_batches_is_refused(other: BatchLoader, message: str) -> None:
    with pytest.raises(UnsupportedTrainingError, match=message):
        other.load_state_dict(loader().state_dict())


def test_index_outside_the_pool_is_refused() -> None:
    with pytest.raises(ExampleIdError, match="span 0 to 20, but the pool has 20"):
        loader(members=torch.tensor([0, 20]))
    with pytest.raises(ExampleIdError, match="span -1 to 3"):
        loader(members=torch.tensor([-1, 3]))


class Recorder(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        self.seen.append(batch[2].tolist())
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.parametrize("limit", [1.0, 2])
def test_lightning_announces_each_epoch(tmp_path: Path, limit: float) -> None:
    module, batches = Recorder(), loader()
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        limit_train_batches=limit,
        default_root_dir=tmp_path,
    )
    trainer.fit(module, batches)
    kept = 4 if limit == 1.0 else 2
    assert module.seen == [index for epoch in range(3) for index in planned(batches, epoch)[:kept]]
