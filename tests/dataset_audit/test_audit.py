from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradient_disclosure import Damping
from gradient_disclosure.dataset_audit import DatasetAuditSettings, audit_dataset
from gradient_disclosure.errors import (
    DisclosureError,
    ExampleIdError,
    InvalidBatchError,
    NonFiniteGradientError,
)
from gradient_disclosure.scores.gnq import gradient_uniqueness
from tests.dataset_audit.cases import case, literal_gradients, literal_scores


@pytest.mark.parametrize("damping", [1e-3, 1.0, 1e4])
def test_equals_the_literal_definition_among_all_examples(damping: float, tmp_path: Path) -> None:
    module, batches = case("mlp", 211)
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(damping), tile=32))
    torch.testing.assert_close(audit.result.scores, literal_scores(module, batches, damping), rtol=1e-9, atol=0)
    assert audit.ids.tolist() == [2 * k + 5 for k in range(211)]
    assert (audit.result.scope, audit.result.damping, audit.coverage) == ("dataset", damping, 1.0)


@pytest.mark.parametrize("name", ["cnn", "sequence", "tied"])
def test_several_positions_and_uses_of_a_parameter(name: str, tmp_path: Path) -> None:
    module, batches = case(name, 71, batch_size=13)
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.05), tile=20))
    torch.testing.assert_close(audit.result.scores, literal_scores(module, batches, 0.05), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["mlp", "cnn", "tied"])
def test_a_model_in_float32_equals_one_in_float64_to_its_rounding(name: str, tmp_path: Path) -> None:
    module, batches = case(name, 60, torch.float32)
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(1e-2), tile=25))
    double = [(x.double() if x.is_floating_point() else x, y, ids) for x, y, ids in batches]
    torch.testing.assert_close(audit.result.scores, literal_scores(module.double(), double, 1e-2), rtol=1e-4, atol=0)


@pytest.mark.parametrize("tile", [5, 40, 41, 500])
def test_the_size_of_tiles_changes_nothing(tile: int, tmp_path: Path) -> None:
    module, batches = case("mlp", 41)
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.1), tile=tile))
    gradients = literal_gradients(module, batches)
    expected = gradient_uniqueness(gradients @ gradients.T, 0.1)
    torch.testing.assert_close(audit.result.scores, expected.scores, rtol=1e-9, atol=0)
    torch.testing.assert_close(audit.result.leverage, expected.leverage, rtol=1e-9, atol=0)
    torch.testing.assert_close(audit.result.squared_norms, expected.squared_norms, rtol=1e-12, atol=0)


def test_relative_damping_is_of_the_mean_squared_norm_of_the_data_set(tmp_path: Path) -> None:
    module, batches = case("mlp", 30)
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.5, "relative"), tile=11))
    norms = literal_gradients(module, batches).square().sum(dim=1)
    assert audit.result.damping == pytest.approx(0.5 * float(norms.mean()), rel=1e-12)
    assert audit.result.relative_damping == pytest.approx(0.5)


def test_the_model_is_left_as_it_was(tmp_path: Path) -> None:
    module, batches = case("mlp", 30)
    module.train()
    kept = torch.ones(8, 6, dtype=torch.float64)
    module[0].weight.grad = kept  # type: ignore[index, union-attr]
    before = {name: value.clone() for name, value in module.state_dict().items()}
    audit_dataset(module, batches, tmp_path, DatasetAuditSettings(tile=11))
    assert all(child.training for child in module.modules())
    assert module[0].weight.grad is kept  # type: ignore[index, union-attr]
    assert bool((kept == 1).all())
    assert module[3].weight.grad is None  # type: ignore[index, union-attr]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_loader_will_do_and_a_shuffling_one_is_refused(tmp_path: Path) -> None:
    module, batches = case("mlp", 40)
    data = TensorDataset(*(torch.cat(parts) for parts in zip(*batches, strict=True)))
    settings = DatasetAuditSettings(Damping(0.1), tile=16)
    audit = audit_dataset(module, DataLoader(data, batch_size=9), tmp_path / "a", settings)
    torch.testing.assert_close(audit.result.scores, literal_scores(module, batches, 0.1), rtol=1e-9, atol=0)
    with pytest.raises(ExampleIdError, match="the loader shuffles"):
        audit_dataset(module, DataLoader(data, batch_size=9, shuffle=True), tmp_path / "b", settings)


def test_excluded_parameters_lower_the_coverage(tmp_path: Path) -> None:
    module, batches = case("mlp", 30)
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.1), 11, exclude=("0.*",)))
    only_last = literal_gradients(module, batches)[:, -27:]
    expected = gradient_uniqueness(only_last @ only_last.T, 0.1).scores
    torch.testing.assert_close(audit.result.scores, expected, rtol=1e-9, atol=0)
    assert audit.coverage == 27 / 83


class Twisted(nn.Module):
    """Of its two layers only one is used, by the sign of the batch's first input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = self.a if float(x[0, 0]) > 0 else self.b
        out: torch.Tensor = chosen(x)
        return out


def test_a_parameter_that_takes_part_in_some_batches_only(tmp_path: Path) -> None:
    _, batches = case("mlp", 30, batch_size=1)
    module = Twisted().double()
    audit = audit_dataset(module, batches, tmp_path, DatasetAuditSettings(Damping(0.1), 7))
    torch.testing.assert_close(audit.result.scores, literal_scores(module, batches, 0.1), rtol=1e-9, atol=0)


def test_what_cannot_be_audited_is_refused_in_words(tmp_path: Path) -> None:
    module, batches = case("mlp", 30)
    with pytest.raises(DisclosureError, match="can be read only once"):
        audit_dataset(module, iter(batches), tmp_path)
    with pytest.raises(DisclosureError, match="no examples"):
        audit_dataset(module, [], tmp_path)
    with pytest.raises(ExampleIdError, match=r"more than once in the data set: \[5, 7"):
        audit_dataset(module, [batches[0], batches[0]], tmp_path)
    with pytest.raises(InvalidBatchError, match=r"one number an example, \(17,\), got \(\)"):
        reduced = DatasetAuditSettings(losses=lambda m, batch: nn.functional.cross_entropy(m(batch[0]), batch[1]))
        audit_dataset(module, batches, tmp_path, reduced)
    poisoned = [*batches[:-1], (batches[-1][0] * float("nan"), *batches[-1][1:])]
    with pytest.raises(NonFiniteGradientError, match="of the examples"):
        audit_dataset(module, poisoned, tmp_path / "nan")
