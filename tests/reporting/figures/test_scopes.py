from __future__ import annotations

import numpy as np
import pandas as pd

from gradient_disclosure.reporting.figures.scopes import DRAWN, scope_agreement
from gradient_disclosure.reporting.figures.style import png

SAME = {"spearman": 0.987, "spearman_top_decile": 0.9, "median_ratio": 2.0, "mean_ratio": 3.0}


def table(size: int) -> pd.DataFrame:
    exact = np.random.default_rng(0).lognormal(size=size)
    columns = {f"{scope}_{b}": exact * 2 for scope in ("batch", "universe_proxy") for b in (8, 64)}
    return pd.DataFrame({"index": range(size), "dataset": exact, "squared_norm": exact, **columns})


def test_a_panel_for_each_scope_and_batch_size_with_its_figures() -> None:
    data = table(DRAWN + 500)
    found = {name: SAME for name in data.columns if name not in ("index", "dataset")}
    figure = scope_agreement(data, found, damping=7.0, batch_damping=0.01)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.splitlines()[0] for title in titles] == [
        "scope batch, b = 8", "scope batch, b = 64", "scope universe_proxy, b = 8", "scope universe_proxy, b = 64",
    ]  # fmt: skip
    assert titles[3].splitlines()[1] == f"λ of the batch = {7.0 * 64 / 3500:.3g}"
    for axes in figure.axes:
        assert len(axes.collections[0].get_offsets()) == DRAWN
        assert "ρ = 0.987" in axes.texts[0].get_text()
    assert "3,000 of 3,500" in figure.texts[0].get_text()
    assert "Baseline, the squared gradient norm: ρ = 0.987" in figure.texts[0].get_text()
    assert png(figure).startswith(b"\x89PNG")


def test_scores_of_zero_are_counted_not_drawn() -> None:
    data = table(20)
    data.loc[:4, "batch_8"] = 0.0
    figure = scope_agreement(data, dict.fromkeys(data.columns, SAME), damping=7.0, batch_damping=0.01)
    assert len(figure.axes[0].collections[0].get_offsets()) == 15
    assert figure.axes[0].texts[1].get_text() == "5 not above 0"
