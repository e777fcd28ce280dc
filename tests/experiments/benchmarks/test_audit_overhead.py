from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks import measure as measuring
from experiments.benchmarks import timing
from experiments.benchmarks.audit_overhead import main
from experiments.benchmarks.measure import measure
from experiments.benchmarks.way import CannotRunError
from experiments.benchmarks.ways import WAYS
from tests.experiments.benchmarks.tiny import MODELS, QUICK


def run(folder: Path, *more: str) -> int:
    quick = ["--threads", "1", "--rounds", "3", "--seconds-per-way", "0.1", "--output", str(folder)]
    return main([*quick, *more], MODELS)


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "cpu.json").read_text())
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmark")
    assert run(folder, "--models", "mlp", "gpt") == 0
    return folder


def test_the_record_says_everything(finished: Path) -> None:
    found = record(finished)
    assert (found["schema"], found["benchmark"]) == (1, "audit_overhead")
    assert list(found["models"]) == ["mlp", "gpt"]
    for model in found["models"].values():
        assert {"measured", "settings", "hardware", "versions", "engine", "optimizer", "plain", "ways"} <= set(model)
        assert model["settings"]["seed"] == 0
        assert model["hardware"]["threads"] == 1
        assert list(model["ways"]) == list(WAYS)
        for name, way in model["ways"].items():
            assert way["exact"] is WAYS[name].exact
            if way["status"] != "measured":
                assert way["reason"]
                continue
            assert way["rounds"] == len(way["ratios"]) == len(way["times"]) >= 2
            low, high = way["ratio"]["interval"]
            assert 0 < low <= way["ratio"]["median"] <= high < math.inf
            assert way["peak_ratio"] == way["peak_bytes"] / model["plain"]["peak_bytes"]
            if way["exact"]:
                assert way["coverage"] == 1.0
                assert way["gram_deviation"] <= way["tolerance"]
    assert found["models"]["mlp"]["ways"]["untouched"]["gradient_deviation"] == 0.0
    assert found["models"]["mlp"]["ways"]["control"]["peak_ratio"] == 1.0
    assert found["models"]["gpt"]["ways"]["opacus"]["status"] == "cannot run"
    assert found["models"]["gpt"]["ways"]["partial"]["coverage"] < 1.0


def test_the_page_shows_every_way_and_every_reason(finished: Path) -> None:
    page = (finished / "cpu.md").read_text()
    assert "## mlp" in page
    assert "## gpt" in page
    assert all(page.count(f"| {way.title} |") == 2 for way in WAYS.values())
    assert "transformer.wpe.weight has 1 example" in page
    assert not list(finished.glob(".*partial"))


def test_finished_models_are_kept(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = record(finished)

    def never(*args: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("experiments.benchmarks.audit_overhead.measure", never)
    assert run(finished, "--models", "mlp", "gpt") == 0
    assert run(finished, "--models", "mlp", "--ways", "reuse") == 0
    assert record(finished) == before
    for changed in (["--fresh"], ["--seed", "1"]):
        with pytest.raises(AssertionError, match="measured again"):
            run(finished, "--models", "mlp", *changed)
    monkeypatch.setattr("experiments.benchmarks.record.engine_fingerprint", lambda: "another")
    with pytest.raises(AssertionError, match="measured again"):
        run(finished, "--models", "mlp")


def test_a_wrong_matrix_is_called_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WAYS, "opacus", replace(WAYS["partial"], name="opacus", exact=True))  # type: ignore[misc]
    assert run(tmp_path, "--models", "mlp", "--ways", "opacus", "one_by_one") == 1
    ways = record(tmp_path)["models"]["mlp"]["ways"]
    assert (ways["opacus"]["status"], ways["one_by_one"]["status"]) == ("wrong", "measured")
    assert "WRONG" in (tmp_path / "cpu.md").read_text()


def test_a_file_that_is_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cpu.json").write_text('{"benchmark": "another"}')
    assert run(tmp_path, "--models", "mlp") == 2
    assert "no record of audit_overhead" in capsys.readouterr().err
    (tmp_path / "cpu.json").write_text("{")
    assert run(tmp_path, "--models", "mlp") == 2
    assert (tmp_path / "cpu.json").read_text() == "{"


def test_what_needs_too_much_memory_is_not_tried() -> None:
    found = measure(MODELS["mlp"], [WAYS["one_by_one"]], replace(QUICK, memory_fraction=0.0), lambda _: None)
    way = found["ways"]["one_by_one"]
    assert way["status"] == "out of memory"
    parameters = 6 * 5 + 5 + 5 * 3 + 3
    assert way["needed_bytes"] == 5 * 4 * parameters
    assert "ratio" not in way


def test_failures_are_reported_with_their_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = {
        "opacus": (timing.StepLimitError("one step takes longer"), "time limit"),
        "one_by_one": (MemoryError("no more"), "out of memory"),
        "torch_func": (torch.OutOfMemoryError("no more"), "out of memory"),
        "pairs": (CannotRunError("tied weights"), "cannot run"),
        "partial": (RuntimeError("a competitor's own words"), "cannot run"),
    }
    real = measuring._checked

    def fail(way: Any, *rest: Any) -> Any:
        if way.name in failures:
            raise failures[way.name][0]
        return real(way, *rest)

    monkeypatch.setattr(measuring, "_checked", fail)
    found = measure(MODELS["mlp"], [WAYS[name] for name in (*failures, "untouched")], QUICK, lambda _: None)
    for name, (error, status) in failures.items():
        assert found["ways"][name]["status"] == status
        assert str(error) in found["ways"][name]["reason"]
    assert found["ways"]["untouched"]["status"] == "measured"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(tmp_path, "--device", "cuda") == 2
    assert "no GPU" in capsys.readouterr().err


def test_a_way_that_fails_later_is_reported_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measuring._warm

    def fail(way: Any, *rest: Any) -> Any:
        if way.name == "opacus":
            raise RuntimeError("not enough memory: you tried to allocate 9 bytes")
        return real(way, *rest)

    monkeypatch.setattr(measuring, "_warm", fail)
    found = measure(MODELS["mlp"], [WAYS["opacus"], WAYS["control"]], QUICK, lambda _: None)
    assert found["ways"]["opacus"]["status"] == "out of memory"
    assert "ratio" not in found["ways"]["opacus"]
    assert found["ways"]["control"]["rounds"] >= 2
