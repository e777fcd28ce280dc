from __future__ import annotations

import logging
from functools import partial

import lightning as L
import pytest
import torch
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradient_disclosure.errors import InvalidBatchError, NonFiniteGradientError
from gradient_disclosure.models import ClassifierModule, mlp

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def classifier(network: nn.Module | None = None, lr: float = 0.1) -> ClassifierModule:
    torch.manual_seed(0)
    return ClassifierModule(
        nn.Linear(4, 3) if network is None else network, optimizer=partial(torch.optim.SGD, lr=lr), num_classes=3
    )


def examples(count: int) -> TensorDataset:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 4, generator=random)
    return TensorDataset(inputs, inputs[:, :3].argmax(1), torch.arange(count))


def trainer(logger: Logger | bool = False, **settings: object) -> L.Trainer:
    quiet = dict.fromkeys(("enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    return L.Trainer(accelerator="cpu", logger=logger, **quiet, **settings)


class Memory(Logger):
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[int, dict[str, float]]] = []

    name = version = "memory"

    def log_hyperparams(self, *args: object, **kwargs: object) -> None:
        pass

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.written.append((step, metrics))


def test_the_loss_is_the_mean_cross_entropy_and_the_index_is_not_used():
    module, (inputs, labels, index) = classifier(), examples(5).tensors
    loss = module.training_step((inputs, labels, index), 0)
    logits = inputs @ module.network.weight.T + module.network.bias
    expected = (logits.exp().sum(1).log() - logits[torch.arange(5), labels]).mean()
    torch.testing.assert_close(loss, expected)
    assert torch.equal(loss, module.training_step([inputs, labels, index + 100], 0))


def test_an_empty_batch_is_a_zero_with_a_graph():
    module, empty = classifier(), tuple(tensor[:0] for tensor in examples(1).tensors)
    loss = module.training_step(empty, 0)
    loss.backward()
    assert loss == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in module.parameters())


def test_the_zero_of_an_empty_batch_is_not_logged():
    memory, data = Memory(), examples(2)
    batches = [tuple(tensor[:size] for tensor in data.tensors) for size in (2, 0, 2)]
    trainer(memory, max_epochs=1, log_every_n_steps=1).fit(classifier(), DataLoader(batches, batch_size=None))
    losses = [metrics["train/loss"] for _, metrics in memory.written if "train/loss" in metrics]
    # Lightning writes the last value again where none is logged.
    assert losses[0] == losses[1] != losses[2]
    assert min(losses) > 0


def test_a_loss_that_is_no_number_stops_with_step_and_epoch():
    data = examples(12)
    data.tensors[0][10] = float("nan")
    with pytest.raises(NonFiniteGradientError, match=r"loss is nan at step 2 \(epoch 0\)"):
        trainer(max_epochs=1).fit(classifier(), DataLoader(data, batch_size=4))


def test_an_infinite_loss_stops_too():
    logits = torch.tensor([[0.0, -torch.inf, 0.0]])
    with pytest.raises(NonFiniteGradientError, match="loss is inf at step 0"):
        classifier(nn.Identity()).training_step((logits, torch.tensor([1]), torch.tensor([0])), 0)


inputs, labels, index = torch.rand(2, 4), torch.tensor([0, 1]), torch.tensor([5, 6])


@pytest.mark.parametrize(
    ("batch", "description"),
    [
        (inputs, r"got \(2, 4\) float32"),
        ((inputs,), r"got a tuple of 1: \[\(2, 4\) float32\]"),
        ((inputs, labels), r"got a tuple of 2: \[\(2, 4\) float32, \(2,\) int64\]"),
        ((inputs, labels.float(), index), r"\(2,\) float32, \(2,\) int64\]"),
        ((inputs, labels[:1], index), r"\(1,\) int64, \(2,\) int64\]"),
        ((inputs, labels, index[:1]), r"\(2,\) int64, \(1,\) int64\]"),
        ((inputs, labels[:, None], index), r"\(2, 1\) int64, \(2,\) int64\]"),
        ((inputs, labels, index.float()), r"\(2,\) int64, \(2,\) float32\]"),
        ((inputs.long(), labels, index), r"\[\(2, 4\) int64, "),
        ((inputs, labels, [5, 6]), r"a list of 2: \[int, int\]\]"),
        ({"input": inputs}, "got dict"),
        (None, "got NoneType"),
    ],
)
@pytest.mark.parametrize("step", ["training_step", "validation_step", "test_step"])
def test_a_batch_of_another_form_is_named(step: str, batch: object, description: str):
    with pytest.raises(InvalidBatchError, match=r"must be \(inputs, labels, index\).*" + description):
        getattr(classifier(), step)(batch, 0)


@pytest.mark.parametrize("stage", ["test", "val"])
def test_accuracy_and_loss_are_those_of_the_whole_set(stage: str):
    module, data = classifier(), examples(23)
    run = trainer()
    evaluate = run.test if stage == "test" else run.validate
    (metrics,) = evaluate(module, DataLoader(data, batch_size=5), verbose=False)
    inputs, labels, _ = data.tensors
    logits = module(inputs)
    # Unequal classes: the share of all examples differs from the mean of the classes' shares.
    assert metrics[f"{stage}/accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    expected = torch.nn.functional.cross_entropy(logits, labels).item()
    assert metrics[f"{stage}/loss"] == pytest.approx(expected, rel=1e-5)


def test_train_loss_is_written_at_the_interval_of_the_trainer():
    memory = Memory()
    run = trainer(memory, max_epochs=3, log_every_n_steps=4)
    run.fit(classifier(), DataLoader(examples(10), batch_size=2))
    assert [step for step, metrics in memory.written if "train/loss" in metrics] == [3, 7, 11]


def test_training_is_gradient_descent_on_the_mean_loss():
    module, data = classifier(), examples(6)
    twin = nn.Linear(4, 3)
    twin.load_state_dict(module.network.state_dict())
    trainer(max_epochs=4).fit(module, DataLoader(data, batch_size=6))
    for _ in range(4):
        twin.zero_grad()
        nn.functional.cross_entropy(twin(data.tensors[0]), data.tensors[1]).backward()
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter -= 0.1 * parameter.grad
    torch.testing.assert_close(module.network.state_dict(), twin.state_dict())


def test_frozen_parameters_do_not_reach_the_optimizer():
    module = classifier()
    module.network.bias.requires_grad_(False)
    (group,) = module.configure_optimizers().param_groups
    assert [parameter is module.network.weight for parameter in group["params"]] == [True]


def test_the_state_is_that_of_the_network_alone():
    module = classifier()
    assert list(module.state_dict()) == ["network.weight", "network.bias"]


def test_it_learns_the_digits():
    from gradient_disclosure.data import load_digits

    bundle = load_digits(pool_size=700)
    torch.manual_seed(0)
    module = ClassifierModule(mlp(bundle.spec), optimizer=partial(torch.optim.Adam, lr=3e-3), num_classes=10)
    pool, test = (
        TensorDataset(part.inputs, part.labels, torch.arange(len(part))) for part in (bundle.pool, bundle.test)
    )
    run = trainer(max_epochs=15)
    run.fit(module, DataLoader(pool, batch_size=64, shuffle=True))
    (metrics,) = run.test(module, DataLoader(test, batch_size=64), verbose=False)
    assert metrics["test/accuracy"] > 0.9
