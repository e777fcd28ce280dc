from __future__ import annotations

import pytest
import torch
from torch import nn

from experiments.benchmarks.arithmetic import Matrix, matrices, predicted_ratios
from experiments.benchmarks.scaling_points import KINDS, Sizes
from tests.experiments.benchmarks.tiny import gpt


def test_the_figures_of_the_specification() -> None:
    """shared/spec/gnq.md, Cost: 768→3072, T = 128, B = 16: pairs 56 %, materialize 35 %, and reuse 2.2 %."""
    found = predicted_ratios([Matrix(768, 3072)], batch=16, positions=128)
    assert found["untouched"] == pytest.approx(1.35, abs=0.005)
    assert found["reuse"] == pytest.approx(1.0 + 17 / (6 * 128))
    # At T = 1 pairs cost B (d + p) / (6 p d): about 1 % for a 1024² layer at B = 32.
    one = predicted_ratios([Matrix(1024, 1024)], batch=32, positions=1)
    assert one["untouched"] == one["reuse"] == pytest.approx(1 + 32 * 2048 / (6 * 1024**2))


def test_attention_belongs_to_the_plain_step() -> None:
    layers = [Matrix(10, 10)]
    bare, with_attention = predicted_ratios(layers, 4, 8), predicted_ratios(layers, 4, 8, attention=6.0 * 4 * 8 * 100)
    assert with_attention["reuse"] - 1 == pytest.approx((bare["reuse"] - 1) / 2)


def test_all_linear_layers_are_found() -> None:
    assert matrices(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))) == [Matrix(2, 3), Matrix(3, 4)]
    found = matrices(gpt())
    assert [(m.n, m.m) for m in found] == [(8, 24), (8, 8), (8, 32), (32, 8), (8, 20)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_runs_and_is_predicted(kind: str) -> None:
    sizes = Sizes(B=2, T=4, width=8)
    prediction = KINDS[kind].prediction(sizes)
    assert 1.0 < prediction["reuse"] <= prediction["untouched"]
    work = KINDS[kind].model(sizes).workload(0, torch.device("cpu"))
    assert work.inputs.shape[:2] == (2, 4)
    assert work.loss().isfinite()
