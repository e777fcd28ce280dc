from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, GradientAccumulationScheduler
from lightning.pytorch.plugins.precision import HalfPrecision, MixedPrecision
from opacus.grad_sample import GradSampleHooks
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from gradient_disclosure.defenses import dp_sgd_checks
from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.errors import UnsupportedTrainingError
from gradient_disclosure.training.batches import PoissonBatches, ShuffledBatches
from gradient_disclosure.training.loader import BatchLoader
from tests.defenses.dp_sgd_training import Batch, Module, copies, fit, network, pool, traces_of_opacus

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Found .* module.s. in eval mode"),
]
DEFENSE = DPSGD(clip_norm=1.0, noise_multiplier=1.0)
MEMBERS = torch.arange(0, 40, 2)


def refused(tmp_path: Path, message: str, module: pl.LightningModule | None = None, **options: Any) -> None:
    """Training stops before the first step with this message, and leaves the module alone."""
    module = Module() if module is None else module
    before = copies(module)
    with pytest.raises(UnsupportedTrainingError, match=f"DP-SGD: {message}"):
        fit(module, DEFENSE, tmp_path, **options)
    assert all(torch.equal(a, b) for a, b in zip(before, copies(module), strict=True))
    assert traces_of_opacus(module) == []


# ---------------------------------------------------------------- trainer


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches is 2.*Set it to 1 and raise the batch size"),
        ({"gradient_clip_val": 0.5}, "gradient_clip_val=0.5.*silently be overwritten.*Leave it unset"),
        ({"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"}, "gradient_clip_val=0.5"),
        ({"precision": "bf16-mixed"}, "precision 'bf16-mixed' scales or rounds.*32-true"),
        ({"callbacks": [EarlyStopping("train/loss")]}, ".*follows 'train/loss'.*not in epsilon.*held-out"),
    ],
)
def test_trainer_settings(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    refused(tmp_path, message, **options)


def test_accumulation_that_begins_in_a_later_epoch(tmp_path: Path) -> None:
    module = Module()
    with pytest.raises(UnsupportedTrainingError, match="accumulate_grad_batches is 2"):
        fit(module, DEFENSE, tmp_path, callbacks=[GradientAccumulationScheduler({1: 2})], max_epochs=2)
    assert len(module.losses) == 3  # the first epoch
    assert traces_of_opacus(module) == []


@pytest.mark.parametrize("plugin", [MixedPrecision, HalfPrecision])
def test_precision_that_scales_or_rounds(plugin: type) -> None:
    trainer: Any = SimpleNamespace(precision_plugin=object.__new__(plugin), precision="16")
    with pytest.raises(UnsupportedTrainingError, match=r"precision '16' scales or rounds.*32-true"):
        dp_sgd_checks._check_precision(trainer, Module())


@pytest.mark.parametrize(("world_size", "strategy"), [(2, "SingleDeviceStrategy"), (1, "DDPStrategy")])
def test_several_devices(world_size: int, strategy: str) -> None:
    kind = pl.strategies.SingleDeviceStrategy if strategy == "SingleDeviceStrategy" else type(strategy, (), {})
    trainer: Any = SimpleNamespace(world_size=world_size, strategy=object.__new__(kind))
    with pytest.raises(UnsupportedTrainingError, match=rf"{strategy} on {world_size} device.*devices=1"):
        dp_sgd_checks._check_device(trainer, Module())


# ---------------------------------------------------------------- module and optimizer


class Manual(Module):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class OwnClipping(Module):
    def configure_gradient_clipping(self, *args: Any, **kwargs: Any) -> None: ...


class OwnParameter(Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def plateau(parameters: Any) -> Any:
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "train/loss"}}


def frozen_batch_norm() -> nn.Sequential:
    norm = nn.BatchNorm1d(6).eval().requires_grad_(False)
    return nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3))


def layers(*between: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Linear(6, 3))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Buffered(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)
        self.register_buffer("seen", torch.zeros(()))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Manual, "the module uses manual optimization.*automatic_optimization to True"),
        (OwnClipping, "the module overrides configure_gradient_clipping.*Remove it"),
        (OwnParameter, r"the module \(OwnParameter\) itself owns trainable parameters.*Move them to a submodule"),
        (lambda: Module(optimizer=plateau), "a learning rate schedule.*follows 'train/loss'"),
        (lambda: Module(optimizer=torch.optim.LBFGS), "LBFGS evaluates the loss several times.*Use SGD or Adam"),
        (
            lambda: Module(optimizer=lambda p: torch.optim.SGD(itertools.islice(p, 3), lr=1.0)),
            "the trainable parameters net.2.bias are not in the optimizer.*freeze them",
        ),
        (lambda: Module(layers(nn.BatchNorm1d(6))), r"net.1 \(BatchNorm1d\) normalizes.*Use GroupNorm"),
        (lambda: Module(layers(nn.BatchNorm1d(6, affine=False))), r"net.1 \(BatchNorm1d\) normalizes"),
        (lambda: Module(layers(nn.ReLU(inplace=True))), r"net.1 \(ReLU\) overwrites its input.*Set inplace=False"),
        (lambda: Module(nn.Sequential(network().eval())), r"net.0.0 \(Linear\) is trainable but in eval mode.*freeze"),
        (lambda: Module(Recurrent()), "Opacus does not support this module"),
        (lambda: Module(Buffered()), "Opacus does not support this module: .*buffers"),
    ],
)
def test_module_and_optimizer(tmp_path: Path, module: Callable[[], Module], message: str) -> None:
    refused(tmp_path, message, module())


def test_several_optimizers() -> None:
    # Lightning itself asks for manual optimization then, which is refused first.
    trainer: Any = SimpleNamespace(optimizers=[object(), object()])
    with pytest.raises(UnsupportedTrainingError, match=r"the module has 2 optimizers.*Use one"):
        dp_sgd_checks._check_optimizer(trainer, Module())


def test_a_module_that_is_private_already(tmp_path: Path) -> None:
    module = Module()
    GradSampleHooks(module)
    with pytest.raises(UnsupportedTrainingError, match="already carries Opacus's hooks"):
        fit(module, DEFENSE, tmp_path)
    assert len(module.autograd_grad_sample_hooks) > 0  # these are not ours to remove


def test_an_attribute_that_opacus_would_overwrite(tmp_path: Path) -> None:
    module = Module()
    module.net.activations = ["tanh"]
    with pytest.raises(UnsupportedTrainingError, match=r"net \(Sequential\) already carries.* attribute of their name"):
        fit(module, DEFENSE, tmp_path)
    assert module.net.activations == ["tanh"]


def test_what_is_harmless_is_not_refused(tmp_path: Path) -> None:
    class Normalizing(Module):
        def __init__(self) -> None:
            super().__init__(layers(nn.GroupNorm(2, 6), nn.Dropout(0.1), nn.LayerNorm(6)))
            self.register_buffer("mean", torch.zeros(4))
            self.loss_function = nn.CrossEntropyLoss()

        def loss(self, batch: Batch) -> Tensor:
            return self.loss_function(self.net(batch[0] - self.mean), batch[1])

    callback, _ = fit(Normalizing(), DEFENSE, tmp_path)
    assert callback.summary()["steps"] == 3
    fit(Module(frozen_batch_norm()), DEFENSE, tmp_path)
    frozen = Module()
    frozen.net[0].requires_grad_(False)
    fit(frozen, DEFENSE, tmp_path, callbacks=[EarlyStopping("val/loss", strict=False)])


# ---------------------------------------------------------------- loader


class Mislabelled(PoissonBatches):
    """Draws at half the rate that 1/len(loader) claims."""

    @property
    def sampling_rate(self) -> float:
        return 0.5 / self.steps_per_epoch


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            BatchLoader(pool(), ShuffledBatches(MEMBERS, 8, 0)),
            r"the accountant assumes.*a BatchLoader with ShuffledBatches\. Use BatchLoader",
        ),
        (
            DataLoader(TensorDataset(torch.randn(8, 4), torch.zeros(8, dtype=torch.int64), torch.arange(8))),
            r"the accountant assumes.*a DataLoader\. Use BatchLoader",
        ),
        (
            BatchLoader(pool(), Mislabelled(MEMBERS, 8, 0)),
            r"the loader draws at rate 0\.1666.*accounted at 1/len\(loader\) = 0\.333",
        ),
    ],
)
def test_loader(tmp_path: Path, loader: Any, message: str) -> None:
    refused(tmp_path, message, loader=loader)
