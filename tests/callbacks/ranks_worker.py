"""What each of two processes runs under Lightning; the tests compare what they return."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DistributedSampler

from gradient_disclosure import GradientUniqueness
from gradient_disclosure.defenses.gnq_censor import CensorRule, GnqCensor
from gradient_disclosure.errors import DisclosureError
from tests.toy import ToyModule, fit, loader

N, PER_RANK = 20, 3
TWO = {"devices": 2, "strategy": "ddp"}
BY_INDEX: dict[str, Any] = {"example_ids": lambda batch: batch[2]}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


class ShardedModule(ToyModule):
    """Sharded as ModelParallelStrategy asks for: each layer, and then the network."""

    def configure_model(self) -> None:
        mesh = self.device_mesh["data_parallel"]
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(self.net, mesh=mesh)


def ledger_of(audit: GradientUniqueness) -> dict[str, Any]:
    frame = audit.ledger.to_frame()
    return {
        "columns": {c: torch.tensor(frame[c].to_numpy(float)) for c in frame.columns},
        "attrs": dict(frame.attrs),
        "n_steps": audit.ledger.n_steps,
        "rate": audit.ledger.exposure.sampling.rate,
        "means": dict(audit.statistics.means()),
    }


def batches(n: int = N) -> Any:
    """Rank r has the examples r, r + 2, r + 4, ... in this order (the sampler that Lightning makes shuffles)."""
    indices = DistributedSampler(range(n), num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False)
    return loader(n, batch_size=PER_RANK, dtype=torch.float64, sampler=indices)


def audited(module: L.LightningModule | None = None, *, n: int = N, epochs: int = 2, **options: Any) -> dict[str, Any]:
    settings = {key: options.pop(key) for key in ("across_ranks", "scope", "inverse") if key in options}
    audit = GradientUniqueness(**BY_INDEX, **settings)
    fit(module or ToyModule(net=net()), batches(n), audit, epochs=epochs, **(TWO | options))
    return ledger_of(audit)


def weights(*callbacks: Any, module: Callable[[], L.LightningModule], **options: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = module()
    fit(made, loader(N, batch_size=PER_RANK, shuffle=True), *callbacks, epochs=2, **(TWO | options))
    return [getattr(p.detach(), "full_tensor", p.detach)().clone() for p in made.parameters()]


def resumed(folder: Path, across_ranks: str) -> dict[str, Any]:
    """Stopped after the first epoch, continued from the checkpoint that rank 0 wrote."""
    options = {"enable_checkpointing": True, "default_root_dir": folder, **TWO}
    saver = ModelCheckpoint(dirpath=folder / across_ranks, filename="first", save_on_train_epoch_end=True)
    first = GradientUniqueness(**BY_INDEX, across_ranks=across_ranks)
    fit(ToyModule(net=net()), batches(), first, saver, epochs=1, **options)
    second = GradientUniqueness(**BY_INDEX, across_ranks=across_ranks)
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[second], logger=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(ToyModule(net=net()), batches(), ckpt_path=folder / across_ranks / "first.ckpt")
    return ledger_of(second)


def refusal(*callbacks: Any, **options: Any) -> str:
    try:
        fit(ToyModule(net=net()), loader(N, PER_RANK, torch.float64), *callbacks, **(TWO | options))
    except DisclosureError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def wrong_ids_on_one_rank() -> str:
    def ids(batch: Any) -> torch.Tensor:
        return batch[2][:1] if torch.distributed.get_rank() == 1 else batch[2]

    return refusal(GradientUniqueness(example_ids=ids))


def everything(folder: Path) -> dict[str, Any]:
    warnings.filterwarnings("ignore")
    return {"ddp": data_parallel(folder), "fsdp": fully_sharded()}


def data_parallel(folder: Path) -> dict[str, Any]:
    censor = GnqCensor(CensorRule())
    return {
        "global": audited(),
        "universe": audited(scope="universe_proxy"),
        "per_rank": audited(across_ranks="per_rank"),
        "per_rank universe": audited(across_ranks="per_rank", scope="universe_proxy"),
        "accumulated": audited(accumulate_grad_batches=2),
        "repeated": audited(n=3, epochs=1),
        "resumed global": resumed(folder, "global"),
        "resumed per_rank": resumed(folder, "per_rank"),
        "plain weights": weights(module=ToyModule),
        "audited weights": weights(GradientUniqueness(**BY_INDEX), module=ToyModule),
        "per_rank weights": weights(GradientUniqueness(**BY_INDEX, across_ranks="per_rank"), module=ToyModule),
        "censor": refusal(GradientUniqueness(**BY_INDEX, censor=censor)),
        "no sampler": refusal(GradientUniqueness(**BY_INDEX), use_distributed_sampler=False),
        "no sampler per_rank": refusal(
            GradientUniqueness(**BY_INDEX, across_ranks="per_rank"), use_distributed_sampler=False
        ),
        "wrong ids": wrong_ids_on_one_rank(),
    }


def fully_sharded() -> dict[str, Any]:
    def strategy() -> dict[str, Any]:
        return {"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)}

    return {
        "global": audited(ShardedModule(net=net()), **strategy()),
        "per_rank": audited(ShardedModule(net=net()), across_ranks="per_rank", **strategy()),
        "plain weights": weights(module=ShardedModule, **strategy()),
        "audited weights": weights(GradientUniqueness(**BY_INDEX), module=ShardedModule, **strategy()),
    }
