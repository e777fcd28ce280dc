"""The benchmark's models in miniature."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from experiments.benchmarks.models import ADAMW, MOMENTUM, BenchmarkModel, gpt2_module, next_tokens, tokens
from experiments.benchmarks.settings import Settings
from experiments.benchmarks.workload import Workload

QUICK = Settings(threads=1, rounds=3, seconds_per_way=0.1, step_limit=30.0)


def images(batch: int, *shape: int) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(batch, *shape), torch.randint(3, (batch,)))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 3, 2), nn.Flatten(),
        nn.Dropout(0.5), nn.Linear(27, 3),
    )  # fmt: skip


def gpt() -> nn.Module:
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 8}
    return gpt2_module(**sizes, bos_token_id=0, eos_token_id=0)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))


MODELS: Mapping[str, BenchmarkModel] = {
    "mlp": BenchmarkModel("mlp", "a small MLP", MOMENTUM, perceptron, images(5, 6), time_targets={"reuse": 1.0}),
    "cnn": BenchmarkModel("cnn", "a small CNN", MOMENTUM, convolutions, images(4, 2, 8, 8)),
    "gpt": BenchmarkModel("gpt", "a small GPT-2", ADAMW, gpt, tokens(3, 6, 20), next_tokens),
}


def workload(name: str) -> Workload:
    return MODELS[name].workload(0, torch.device("cpu"))
