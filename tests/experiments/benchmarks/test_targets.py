from __future__ import annotations

from typing import Any

from experiments.benchmarks.models import MODELS
from experiments.benchmarks.table import rows
from experiments.benchmarks.targets import memory_verdict, opacus_verdict, time_verdict


def model(plain: float, ratio: float, peak: float, opacus: float | None = None) -> dict[str, Any]:
    def way(value: float) -> dict[str, Any]:
        spread = {"median": value, "interval": [value, value]}
        return {
            "title": "t", "exact": True, "status": "measured", "ratio": spread, "extra_seconds": spread, "rounds": 3,
            "peak_ratio": peak,
        }  # fmt: skip

    ways = {"reuse": way(ratio)} | ({"opacus": way(opacus)} if opacus else {})
    return {"plain": {"seconds": {"median": plain}}, "ways": ways, "time_targets": {"reuse": 1.2}}


def test_targets() -> None:
    met, missed = model(0.1, 1.2, 1.10), model(0.1, 1.21, 1.11)
    assert str(time_verdict(met, "reuse")) == "≤ 1.20 met"
    assert str(memory_verdict(met, "reuse")) == "≤ 1.10 met"
    assert str(time_verdict(missed, "reuse")) == "≤ 1.20 NOT met"
    assert str(memory_verdict(missed, "reuse")) == "≤ 1.10 NOT met"
    assert opacus_verdict(met, "reuse") is None
    slower = opacus_verdict(model(0.1, 1.5, 1.0, opacus=1.4), "reuse")
    assert slower is not None
    assert not slower.met
    assert rows(missed)[0][-2:] == ["≤ 1.20 NOT met", "≤ 1.10 NOT met"]


def test_no_target_for_short_steps_and_for_others() -> None:
    short = model(0.049, 9.0, 9.0, opacus=1.0)
    assert time_verdict(short, "reuse") is memory_verdict(short, "reuse") is opacus_verdict(short, "reuse") is None
    long = model(0.1, 9.0, 9.0, opacus=1.0)
    assert time_verdict(long, "opacus") is memory_verdict(long, "opacus") is opacus_verdict(long, "opacus") is None


def test_the_targets_of_issue_4() -> None:
    targets = {name: dict(found.time_targets) for name, found in MODELS.items()}
    assert targets["gpt2_b16_t128"] == targets["gpt2_b8_t256"] == {"untouched": 1.5, "reuse": 1.2}
    assert targets["resnet18"] == {"untouched": 2.2, "reuse": 1.8}
    assert all(targets[f"mlp_{width}"] == {"untouched": 1.05, "reuse": 1.05} for width in (256, 1024, 2048, 4096))
