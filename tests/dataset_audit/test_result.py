from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from gradient_disclosure import Damping
from gradient_disclosure.dataset_audit import DatasetAudit, DatasetAuditSettings, audit_dataset
from gradient_disclosure.errors import RunFolderError
from tests.dataset_audit.cases import case


def test_saved_and_loaded_is_the_same(tmp_path: Path) -> None:
    module, batches = case("mlp", 30)
    audit = audit_dataset(module, batches, tmp_path / "tiles", DatasetAuditSettings(Damping(0.1), tile=11))
    audit.save(tmp_path / "out")
    again = DatasetAudit.load(tmp_path / "out")
    assert torch.equal(again.ids, audit.ids)
    assert torch.equal(again.result.scores, audit.result.scores)
    assert again.summary() == audit.summary()
    kept = json.loads((tmp_path / "out" / "dataset_gnq.json").read_text())
    assert kept["scope"] == "dataset"
    assert kept["effective_dimension"] == pytest.approx(float(audit.result.leverage.sum()))
    assert kept["relative_damping"] == pytest.approx(0.1 / float(audit.result.squared_norms.mean()))
    assert kept["cpu_seconds"] > 0
    assert kept["seconds"] > 0
    assert kept["peak_memory_bytes"] > 1e7
    table = pd.read_parquet(tmp_path / "out" / "dataset_gnq.parquet")
    assert list(table.columns) == ["index", "gnq", "leverage", "squared_norm"]


def test_an_incomplete_result_is_an_error_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no complete audit"):
        DatasetAudit.load(tmp_path)
