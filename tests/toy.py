"""A user's own LightningModule and loader, unlike anything in the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))


class ToyModule(L.LightningModule):
    def __init__(
        self, optimizer: Callable[..., torch.optim.Optimizer] | None = None, net: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.net = net if net is not None else network()
        self.make_optimizer = optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.make_optimizer(self.parameters())


def examples(n: int = 20, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (n,), generator=generator), torch.arange(n)


def loader(n: int = 20, batch_size: int = 6, dtype: torch.dtype = torch.float32, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*examples(n, dtype)), batch_size=batch_size, **options)


def fit(module: L.LightningModule, data: Any, *callbacks: Any, epochs: int = 3, **options: Any) -> L.Trainer:
    defaults: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=list(callbacks),
        enable_model_summary=False,
        **(defaults | options),
    )
    trainer.fit(module, data)
    return trainer
