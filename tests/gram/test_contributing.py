from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from gradient_disclosure import GradientGram
from gradient_disclosure.gram import registry
from gradient_disclosure.gram.reference import per_example_gradients

GUIDE = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"


@pytest.mark.parametrize("shape", [(4,), (3, 4)])
def test_the_worked_example_of_the_guide(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {"torch": torch}
    exec(code[1], names)
    model = torch.nn.Sequential(names["Gain"](4), torch.nn.Linear(4, 2)).double()  # type: ignore[operator]
    x = torch.randn(5, *shape, dtype=torch.float64)
    with GradientGram(model) as gram:
        model(x).square().flatten(1).sum(dim=1).mean().backward()
    gradients = per_example_gradients(model, lambda m, i: m(x[i : i + 1]).square().sum(), 5)
    torch.testing.assert_close(gram.gram(), gradients @ gradients.T)
