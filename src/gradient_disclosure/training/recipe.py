"""Everything that decides how a model is trained, in one immutable value shared by target and shadow models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gradient_disclosure.data.bundle import DataBundle, DataSpec
from gradient_disclosure.models.classifier import ClassifierModule
from gradient_disclosure.training.batches import derived_seed
from gradient_disclosure.training.defense import AuditSettings, Defense


@dataclass(frozen=True)
class TrainingRecipe:
    """How to train on any choice of members.

    Attributes:
        data: the pool and the test set.
        network: data spec → network, freshly initialized.
        optimizer: parameters → optimizer.
        defense: how the training is defended.
        audit: how the in-run audit scores.
        epochs: passes over the members.
        batch_size: examples a step (expected, under Poisson sampling).
        accelerator: Lightning's accelerator, "cpu" or "gpu"; one device.
        checkpoint_every_n_steps: how much work a kill may cost.
    """

    data: DataBundle
    network: Callable[[DataSpec], nn.Module]
    optimizer: Callable[[Iterable[Parameter]], Optimizer]
    defense: Defense
    audit: AuditSettings = field(default_factory=AuditSettings)
    epochs: int = 30
    batch_size: int = 64
    accelerator: str = "cpu"
    checkpoint_every_n_steps: int = 100

    def module(self) -> ClassifierModule:
        """A new module, initialized from torch's global random state."""
        spec = self.data.spec
        return ClassifierModule(self.network(spec), optimizer=self.optimizer, num_classes=spec.num_classes)


def target_members(pool_size: int, prior: float, seed: int) -> Tensor:
    """(n,) int64, sorted: the members of the target, a random fraction ``prior`` of the pool.

    Example:
        >>> target_members(10, 0.5, seed=0).numel()
        5
    """
    generator = torch.Generator().manual_seed(derived_seed("target members", seed))
    return torch.randperm(pool_size, generator=generator)[: round(prior * pool_size)].sort().values


def shadow_memberships(count: int, pool_size: int, seed: int) -> Tensor:
    """Membership of shadow models in random half splits: each example is in exactly half of the models.

    Args:
        count: number of models n, even: they come in pairs with complementary halves.
        pool_size: number of examples N.
        seed: of the splits.

    Returns:
        (n, N) bool.

    Raises:
        ValueError: an odd number of models, or fewer than 2.

    Example:
        >>> shadow_memberships(4, 6, seed=0).sum(dim=0).tolist()
        [2, 2, 2, 2, 2, 2]
    """
    if count < 2 or count % 2:
        raise ValueError(f"shadow models come in pairs with complementary halves: give an even number, got {count}")
    generator = torch.Generator().manual_seed(derived_seed("shadow members", seed))
    masks = torch.zeros(count, pool_size, dtype=torch.bool)
    for pair in range(0, count, 2):
        half = torch.randperm(pool_size, generator=generator)[: pool_size // 2]
        masks[pair, half] = True
        masks[pair + 1] = ~masks[pair]
    return masks
