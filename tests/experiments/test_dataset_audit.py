"""The command on scikit-learn's digits: a model trained for it, and one of a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments.dataset_audit import CAPTURE_BATCH, batches_of, damping_of, main
from experiments.dataset_scopes import main as draw_again
from experiments.run import job
from gradient_disclosure.data import load_digits
from gradient_disclosure.files import load_state, write_text
from gradient_disclosure.scores.gnq import gradient_uniqueness
from tests.dataset_audit.cases import literal_gradients
from tests.experiments.composing import composed

DATA = ["data=digits", "model=mlp", "model.network.hidden=[6]", "data.loader.pool_size=120", "training.epochs=1"]


def test_a_model_trained_for_it_and_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = [*DATA, "--out", str(out), "--tile", "50", "--batch-sizes", "16", "40"]
    assert main([*arguments, "--threads", str(torch.get_num_threads())]) == 0
    table = pd.read_parquet(out / "dataset_gnq.parquet")
    kept = json.loads((out / "dataset_gnq.json").read_text())
    assert kept["damping"] == pytest.approx(0.01 * 120 / 64)  # the run's own, in units of the pool
    weights = load_state(next(out.glob("target-*")) / "trained.pt")["module"]
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 6), torch.nn.Tanh(), torch.nn.Linear(6, 10))
    module.load_state_dict({key.removeprefix("network."): value for key, value in weights.items()})
    pool = load_digits(pool_size=120).pool
    gradients = literal_gradients(module.double(), [(pool.inputs.double(), pool.labels, torch.arange(120))])
    expected = gradient_uniqueness(gradients @ gradients.T, kept["damping"]).scores
    torch.testing.assert_close(torch.tensor(table["gnq"].to_numpy()), expected, rtol=1e-4, atol=0)
    assert not (out / "tiles").exists()
    found = json.loads((out / "agreement.json").read_text())
    assert set(found) == {"squared_norm", "batch_16", "universe_proxy_16", "batch_40", "universe_proxy_40"}
    scores = pd.read_parquet(out / "scopes.parquet")
    assert found["batch_16"]["spearman"] == pytest.approx(scores["batch_16"].corr(scores["dataset"], method="spearman"))
    torch.testing.assert_close(torch.tensor(scores["dataset"].to_numpy()), expected, rtol=1e-4, atol=0)
    picture = (out / "scopes.png").read_bytes()
    (out / "scopes.png").unlink()
    assert draw_again([str(out)]) == 0
    assert (out / "scopes.png").read_bytes() == picture
    assert draw_again([str(tmp_path)]) == 2
    assert "holds no scopes.parquet" in capsys.readouterr().err


def test_the_model_of_a_finished_run_at_its_moments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    quick = ["attack=membership_only", "attack.membership.shadow_models=0", "logger=none", "report.progress=false"]
    job(composed(*DATA, *quick), run)
    for moment in ("final", "init"):
        assert main(["--run", str(run), "--moment", moment, "--out", str(tmp_path / moment), "--damping", "2"]) == 0
    final, init = (json.loads((tmp_path / name / "dataset_gnq.json").read_text()) for name in ("final", "init"))
    assert final["damping"] == init["damping"] == 2.0
    assert final["data"] == init["data"]
    assert final["model"] != init["model"]
    assert final["mean_squared_norm"] != init["mean_squared_norm"]
    assert main(["--run", str(run), "--moment", "never", "--out", str(tmp_path / "x")]) == 2
    assert "no weights were kept of the moment 'never'; kept: " in capsys.readouterr().err
    assert main(["--run", str(run), "data=digits", "--out", str(tmp_path / "x")]) == 2
    assert "leave out data=digits" in capsys.readouterr().err


def test_a_folder_that_is_no_finished_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", str(tmp_path), "--out", str(tmp_path / "x")]) == 2
    assert "config.yaml is missing" in capsys.readouterr().err
    from omegaconf import OmegaConf

    write_text(tmp_path / "config.yaml", OmegaConf.to_yaml(composed(*DATA), resolve=True))
    assert main(["--run", str(tmp_path), "--out", str(tmp_path / "x")]) == 2
    assert "holds no finished training" in capsys.readouterr().err


def test_damping_is_in_units_of_the_pool() -> None:
    plain = composed(*DATA)
    assert damping_of(plain, 6400, None, relative=False).value == pytest.approx(1.0)
    assert damping_of(composed(*DATA, "audit.scope=universe_proxy"), 6400, None, relative=False).value == 0.01
    assert damping_of(plain, 6400, 3.0, relative=True).kind == "relative"
    private = composed(*DATA, "+defense=dp_sgd", "epsilon=8")
    with pytest.raises(Exception, match=r"Give --damping"):
        damping_of(private, 6400, None, relative=False)


def test_batches_cover_the_pool_in_order() -> None:
    pool = load_digits(pool_size=1100).pool
    assert [len(index) for _, _, index in batches_of(pool)] == [CAPTURE_BATCH, CAPTURE_BATCH, 100]
    assert torch.equal(torch.cat([index for _, _, index in batches_of(pool)]), torch.arange(1100))
