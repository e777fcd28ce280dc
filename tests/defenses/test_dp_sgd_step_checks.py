from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gradient_disclosure.defenses.dp_sgd import DPSGD
from gradient_disclosure.defenses.dp_sgd_step_checks import check_loss, check_per_example_gradients
from gradient_disclosure.errors import InvalidBatchError, NonFiniteGradientError, UnsupportedTrainingError
from tests.defenses.dp_sgd_training import Batch, Module, fit, network, traces_of_opacus

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
DEFENSE = DPSGD(clip_norm=1.0, noise_multiplier=1.0)
INDEX = torch.tensor([3, 8, 9, 4, 1])
LOGITS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
LABELS = torch.tensor([0, 2, 1, 0, 1])
TARGETS = torch.rand(5, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy(LOGITS, LABELS, reduction="sum"),
        F.cross_entropy(LOGITS, LABELS, reduction="none").sum(),
        F.mse_loss(LOGITS, TARGETS, reduction="sum"),
        F.binary_cross_entropy_with_logits(LOGITS, TARGETS, reduction="sum"),
    ],
)
def test_summed_losses(loss: Tensor) -> None:
    with pytest.raises(UnsupportedTrainingError, match=r"the loss is a sum over the batch\. Return its mean"):
        check_loss(loss / 1, 0, INDEX)


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy(LOGITS, LABELS),
        F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1),
        F.cross_entropy(LOGITS, LABELS, reduction="none").mean(),
        F.cross_entropy(LOGITS, LABELS, reduction="sum") / 5,
        F.mse_loss(LOGITS, TARGETS, reduction="none").sum(dim=1).mean(),
        LOGITS.square().sum() / 5,
    ],
)
def test_mean_losses(loss: Tensor) -> None:
    check_loss(loss / 1, 0, INDEX)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite(value: float) -> None:
    with pytest.raises(NonFiniteGradientError, match=rf"loss is {value} at step 7, on examples \[3, 8, 9, 4, 1\]"):
        check_loss(LOGITS.square().mean() * value / 1, 7, INDEX)


class Summed(Module):
    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch[0]), batch[1], reduction="sum")


class Penalized(Module):
    def loss(self, batch: Batch) -> Tensor:
        penalty = self.net[0].weight.square().sum()
        return F.cross_entropy(self.net(batch[0]), batch[1]) + 0.1 * penalty


class Idle(Module):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


class Silent(Module):
    def loss(self, batch: Batch) -> None:
        return None


class CalledOutsideItsForward(Module):
    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(F.linear(batch[0], self.net.weight, self.net.bias), batch[1])


class CalledTwice(Module):
    def loss(self, batch: Batch) -> Tensor:
        self.net(batch[0])
        return F.cross_entropy(self.net(batch[0]), batch[1])


class Broadcast(Module):
    """A learned offset, looked up once for the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Embedding(1, 3)

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch[0]) + self.offset(torch.zeros(1, dtype=torch.int64)), batch[1])


class Renamed(Module):
    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> dict[str, Tensor]:
        return {"x": batch[0], "y": batch[1]}


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (Summed(), UnsupportedTrainingError, "the loss is a sum over the batch"),
        (Penalized(), UnsupportedTrainingError, "the gradient of net.0.weight is not the mean.*weight_decay"),
        (Idle(), UnsupportedTrainingError, "unused.weight is trainable but has no per-example gradient.*freeze it"),
        (Silent(), UnsupportedTrainingError, "no per-example gradient. training_step returned None"),
        (CalledOutsideItsForward(nn.Linear(4, 3)), UnsupportedTrainingError, "outside the forward of its layer"),
        (CalledTwice(), UnsupportedTrainingError, "ran its layer more often than it went into the loss"),
        (
            Broadcast(),
            UnsupportedTrainingError,
            r"offset.weight has 1 per-example gradients in a batch of \d.*expanded",
        ),
        (Renamed(), InvalidBatchError, "needs batches .inputs, labels, index."),
    ],
)
def test_modules_found_out_at_their_first_step(tmp_path: Path, module: Module, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(module, DEFENSE, tmp_path)
    assert traces_of_opacus(module) == []


def test_one_layer_used_twice_in_the_loss_is_fine(tmp_path: Path) -> None:
    class Shared(Module):
        def loss(self, batch: Batch) -> Tensor:
            return F.cross_entropy(self.net(batch[0]) + self.net(2.0 * batch[0]), batch[1])

    callback, _ = fit(Shared(network()), DEFENSE, tmp_path)
    assert callback.summary()["steps"] == 3


def test_accumulated_gradients_are_refused() -> None:
    layer: Any = nn.Linear(2, 1, bias=False)
    layer.weight.grad_sample = [torch.zeros(3, 1, 2), torch.zeros(3, 1, 2)]
    with pytest.raises(UnsupportedTrainingError, match=r"weight has \[3, 3\] per-example gradients in a batch of 3"):
        check_per_example_gradients(layer, 3, against_autograd=False)
