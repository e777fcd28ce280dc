from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from gradient_disclosure.defenses.dp_sgd_opacus import OpacusSession
from gradient_disclosure.defenses.dp_sgd_settings import PrivacyTerms
from gradient_disclosure.training.batches import PoissonBatches
from gradient_disclosure.training.loader import BatchLoader
from tests.defenses.dp_sgd_training import Module, pool, traces_of_opacus

TERMS = PrivacyTerms(1.0, 1.0, 1e-3, 0.25, "rdp", None, None)


class Sessions(Callback):
    """Opens a session when training starts, without taking a step, and closes it."""

    def __init__(self, net: nn.Module) -> None:
        self.expected_batch_size = 0.0
        self.net = net

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        (own,) = trainer.optimizers
        session = OpacusSession(
            trainer,
            pl_module,
            terms=TERMS,
            history=[],
            generator=torch.Generator(),
            before_step=lambda parameters: None,
        )
        assert traces_of_opacus(pl_module)
        assert trainer.optimizers[0].original_optimizer is own
        self.expected_batch_size = trainer.optimizers[0].expected_batch_size
        session.close()
        assert traces_of_opacus(pl_module) == []
        assert trainer.optimizers == [own]
        trainer.should_stop = True


def open_and_close(folder: Path, module: Module, members: int, batch_size: int) -> Sessions:
    sessions = Sessions(module)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=[sessions],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=folder,
    )
    trainer.fit(module, BatchLoader(pool(60), PoissonBatches(torch.arange(members), batch_size, 0)))
    return sessions


@pytest.mark.parametrize(("members", "batch_size", "expected"), [(23, 5, 4.6), (49, 1, 1.0), (20, 5, 5.0)])
def test_expected_batch_size_is_not_truncated(tmp_path: Path, members: int, batch_size: int, expected: float) -> None:
    # int(49 * (1 / 49)) is 0, by which Opacus alone would divide.
    assert open_and_close(tmp_path, Module(), members, batch_size).expected_batch_size == expected


def test_a_set_up_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr("opacus.privacy_engine.PrivacyEngine._prepare_optimizer", fail)
    module = Module()
    with pytest.raises(MemoryError):
        open_and_close(tmp_path, module, 20, 5)
    assert traces_of_opacus(module) == []
