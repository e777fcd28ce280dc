"""The models of the benchmark, with their batches and optimizers; weights and data are random and seeded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from experiments.benchmarks.workload import Workload, as_they_are
from gradient_disclosure.data.bundle import DataSpec
from gradient_disclosure.models.networks.lenet import lenet
from gradient_disclosure.models.networks.mlp import mlp
from gradient_disclosure.models.networks.resnet18 import resnet18

CIFAR = DataSpec(kind="image", shape=(3, 32, 32), num_classes=10)
DIGITS = DataSpec(kind="image", shape=(1, 28, 28), num_classes=10)

MOMENTUM = "SGD, momentum 0.9, learning rate 0.01"
ADAMW = "AdamW, learning rate 1e-4"
OPTIMIZERS: Mapping[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    MOMENTUM: lambda parameters: SGD(parameters, lr=0.01, momentum=0.9),
    ADAMW: lambda parameters: AdamW(parameters, lr=1e-4),
}


@dataclass(frozen=True)
class BenchmarkModel:
    """A model, its batch and its optimizer.

    Attributes:
        name: as given to ``--models``.
        description: for the reader of the table.
        optimizer: a key of ``OPTIMIZERS``.
        build: makes the module.
        batch: makes inputs (B, ...) and targets (B, ...).
        logits: from the module's return value to (B, [T,] classes).
        time_targets: way → largest ratio of step times that issue 4 allows.
    """

    name: str
    description: str
    optimizer: str
    build: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    logits: Callable[[Any], Tensor] = as_they_are
    time_targets: Mapping[str, float] = field(default_factory=dict)

    def workload(self, seed: int, device: torch.device) -> Workload:
        """The same weights and data for the same seed; torch's random state outside is left alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self.build().to(device).train()
            inputs, targets = (tensor.to(device) for tensor in self.batch())
        optimizer = OPTIMIZERS[self.optimizer]([p for p in module.parameters() if p.requires_grad])
        return Workload(module, inputs, targets, optimizer, self.logits)


def _images(batch: int, *shape: int, classes: int = 10) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (torch.randn(batch, *shape), torch.randint(classes, (batch,)))


def _mlp(width: int) -> BenchmarkModel:
    return BenchmarkModel(
        f"mlp_{width}",
        f"784-{width}-{width}-10 MLP, ReLU, B = 32",
        MOMENTUM,
        lambda: mlp(DIGITS, hidden=(width, width), activation="relu"),
        _images(32, *DIGITS.shape),
        time_targets={"untouched": 1.05, "reuse": 1.05},
    )


def _vit_tiny() -> nn.Module:
    from torchvision.models import VisionTransformer

    vit: nn.Module = VisionTransformer(
        image_size=224, patch_size=16, num_layers=12, num_heads=3, hidden_dim=192, mlp_dim=768, num_classes=1000
    )
    # torchvision's head starts at zero, behind which every other gradient would be zero.
    nn.init.trunc_normal_(vit.get_submodule("heads.head").get_parameter("weight"), std=0.02)
    return vit


def gpt2_module(**sizes: Any) -> nn.Module:
    """Hugging Face's GPT-2 with random weights, tied head, dropout 0.1; GPT-2 small unless sizes are given."""
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False, **sizes))


def next_tokens(outputs: Any) -> Tensor:
    """The logits of all positions but the last, whose next token is not in the batch."""
    logits: Tensor = outputs.logits[:, :-1]
    return logits


def tokens(batch: int, length: int, vocabulary: int) -> Callable[[], tuple[Tensor, Tensor]]:
    """Random token ids (B, T) and the next token of each but the last."""

    def draw() -> tuple[Tensor, Tensor]:
        ids = torch.randint(vocabulary, (batch, length))
        return ids, ids[:, 1:].clone()

    return draw


def _gpt2(batch: int, length: int) -> BenchmarkModel:
    return BenchmarkModel(
        f"gpt2_b{batch}_t{length}",
        f"GPT-2 small (Hugging Face, random weights, tied head, dropout 0.1), B = {batch}, T = {length}",
        ADAMW,
        gpt2_module,
        tokens(batch, length, 50257),
        next_tokens,
        time_targets={"untouched": 1.50, "reuse": 1.20},
    )


_ALL = (
    *(_mlp(width) for width in (256, 1024, 2048, 4096)),
    BenchmarkModel(
        "lenet", "LeNet (3 convolutions), 3×32×32, B = 64", MOMENTUM, lambda: lenet(CIFAR), _images(64, *CIFAR.shape)
    ),
    BenchmarkModel(
        "resnet18",
        "ResNet-18 with GroupNorm, 3×3 stem, no max-pool, 3×32×32, B = 64",
        MOMENTUM,
        lambda: resnet18(CIFAR),
        _images(64, *CIFAR.shape),
        time_targets={"untouched": 2.2, "reuse": 1.8},
    ),
    BenchmarkModel(
        "vit_tiny",
        "ViT-tiny (torchvision; patch 16, 224 px, width 192, depth 12, 3 heads), 1000 classes, B = 16",
        ADAMW,
        _vit_tiny,
        _images(16, 3, 224, 224, classes=1000),
    ),
    _gpt2(16, 128),
    _gpt2(8, 256),
)
MODELS: Mapping[str, BenchmarkModel] = {model.name: model for model in _ALL}
