"""A small DP-SGD training that the tests of the defense share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from gradient_disclosure.data.bundle import Examples
from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.defenses.dp_sgd_callback import DPSGDCallback
from gradient_disclosure.training.loader import BatchLoader

Batch = tuple[Tensor, Tensor, Tensor]


def pool(n: int = 40) -> Examples:
    generator = torch.Generator().manual_seed(0)
    return Examples(torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


class Module(pl.LightningModule):
    """Mean cross entropy, so that an empty batch has the loss NaN."""

    def __init__(
        self,
        net: nn.Module | None = None,
        optimizer: Callable[..., Any] = lambda parameters: torch.optim.SGD(parameters, lr=1.0),
    ) -> None:
        super().__init__()
        self.net = network() if net is None else net
        self.make_optimizer = optimizer
        self.losses: list[float] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor | None:
        loss = self.loss(batch)
        self.losses.append(float("nan") if loss is None else loss.item())
        return loss

    def loss(self, batch: Batch) -> Tensor | None:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return self.make_optimizer(p for p in self.parameters() if p.requires_grad)


class NoGradient(Module):
    """A loss that does not depend on the parameters: every gradient is zero."""

    def loss(self, batch: Batch) -> Tensor:
        return (self.net(batch[0]) * 0.0).mean()


class Weights(Callback):
    """Copies the weights at the start and after each step."""

    def __init__(self) -> None:
        self.after: list[list[Tensor]] = []
        self.sizes: list[int] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.after.append(copies(pl_module))

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Batch, batch_idx: int
    ) -> None:
        self.after.append(copies(pl_module))
        self.sizes.append(len(batch[2]))

    def updates(self) -> list[Tensor]:
        """Flat change of the weights by each step."""
        flat = [torch.cat([p.flatten() for p in weights]) for weights in self.after]
        return [after - before for before, after in pairwise(flat)]


def copies(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def fit(
    module: pl.LightningModule,
    defense: DPSGD,
    folder: Path,
    *,
    members: Tensor | None = None,
    batch_size: int = 8,
    seed: int = 0,
    data: Examples | None = None,
    callbacks: Sequence[Callback] = (),
    callback: DPSGDCallback | None = None,
    loader: Any = None,
    resume_from: Path | None = None,
    **options: Any,
) -> tuple[DPSGDCallback, pl.Trainer]:
    """Train; the noise and the sampler get the same seed."""
    callback = defense.callback(seed=seed) if callback is None else callback
    if loader is None:
        members = torch.arange(0, 40, 2) if members is None else members
        loader = BatchLoader(pool() if data is None else data, defense.plan(members, batch_size, seed))
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    trainer = pl.Trainer(callbacks=[callback, *callbacks], **{**settings, **options})
    trainer.fit(module, loader, ckpt_path=resume_from, weights_only=True)
    return callback, trainer


def traces_of_opacus(module: nn.Module) -> list[str]:
    """What Opacus may leave on a module."""
    found = [f"{type(m).__name__}.{name}" for m in module.modules() for name in vars(m) if name in ATTRIBUTES]
    found += [f"{type(m).__name__} has hooks" for m in module.modules() if m._forward_hooks or m._backward_hooks]
    return found + [f"{name}.{key}" for name, p in module.named_parameters() for key in vars(p)]


ATTRIBUTES = ("autograd_grad_sample_hooks", "activations", "max_batch_len", "ft_compute_sample_grad")
