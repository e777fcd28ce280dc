from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer

from gradient_disclosure.errors import DisclosureError
from gradient_disclosure.reporting.comparison.collect import Collection, ComparedRun, collect_runs, read_results
from gradient_disclosure.reporting.comparison.columns import comparison_frame, comparison_grid, split_constant
from gradient_disclosure.reporting.comparison.figure import utility_against_attack
from gradient_disclosure.reporting.comparison.page import render_comparison
from tests.reporting.fake_record import fake_record
from tests.reporting.overlaps import find_overlaps


def run(defense: str, folder: str = "run", epsilon: float | None = None, **changes: Any) -> ComparedRun:
    return ComparedRun(folder, {**fake_record(defense=defense, epsilon=epsilon, size=100).results, **changes})


@pytest.fixture(scope="module")
def runs() -> list[ComparedRun]:
    return [run("none", "a"), run("random_censor", "b"), run("gnq_censor", "c"), run("dp_sgd", "d", 8.0)]


def put(folder: Path, results: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")


BASE = {"defense/name": "none", "meta/fingerprint": "f", "utility/test_accuracy": 0.9, "cost/total_seconds": 10.0}


def test_copies_are_one_run_with_a_count(tmp_path: Path) -> None:
    put(tmp_path / "a", BASE)
    put(tmp_path / "b" / "deep", {**BASE, "cost/total_seconds": 99.0, "meta/started": "later"})
    put(tmp_path / "c", {**BASE, "meta/fingerprint": "g"})
    collection = collect_runs([tmp_path])
    assert [(item.folder, item.copies) for item in collection.runs] == [("a", 2), ("c", 1)]
    assert collection.runs[0].results["cost/total_seconds"] == 10.0
    assert collection.problems == ()


def test_runs_that_differ_in_their_results_are_never_merged(tmp_path: Path) -> None:
    put(tmp_path / "a", BASE)
    put(tmp_path / "b", {**BASE, "utility/test_accuracy": 0.8})
    assert len(collect_runs([tmp_path]).runs) == 2


def test_runs_without_a_fingerprint_are_never_merged(tmp_path: Path) -> None:
    for name in ("a", "b"):
        put(tmp_path / name, {key: value for key, value in BASE.items() if key != "meta/fingerprint"})
    assert len(collect_runs([tmp_path]).runs) == 2


def test_a_folder_named_twice_is_read_once(tmp_path: Path) -> None:
    put(tmp_path / "a", BASE)
    collection = collect_runs([tmp_path, tmp_path / "a"])
    assert [item.copies for item in collection.runs] == [1]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "cannot be read"),
        ('{"defense/name": "none", "a": NaN}', "contains NaN"),
        ("[1]", "not the results of a run"),
        ('{"accuracy": 1}', "'defense/name' is missing"),
        ('{"defense/name": "none", "a": {"b": 1}}', "'a' is not a plain number"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_what_is_not_a_result_is_named_with_its_reason(tmp_path: Path, content: str | bytes, reason: str) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DisclosureError, match=reason) as error:
        read_results(path)
    assert str(path) in str(error.value)


def test_order_is_by_defense_and_epsilon(tmp_path: Path) -> None:
    for name, defense, epsilon in (("a", "dp_sgd", 8.0), ("b", "dp_sgd", 1), ("c", "new", None), ("d", "none", None)):
        put(tmp_path / name, {"defense/name": defense, "setting/epsilon": epsilon})
    assert [item.folder for item in collect_runs([tmp_path]).runs] == ["d", "b", "a", "c"]


def test_csv_holds_raw_numbers_and_dashes(runs: list[ComparedRun]) -> None:
    text = comparison_frame(runs).to_csv(index=False)
    frame = pd.read_csv(io.StringIO(text), na_values="–")
    assert frame["setting/epsilon"].isna().tolist() == [True, True, True, False]
    assert text.count("–") > 0
    for key in ("utility/test_accuracy", "attack/lira_online/auc_low", "attack/lira_online/tpr_at_1pct_fpr"):
        assert frame[key].tolist() == pytest.approx([item.results[key] for item in runs])


def test_grid_shows_every_column_asked_for(runs: list[ComparedRun]) -> None:
    grid = comparison_grid(runs)
    rows = [dict(zip([name.replace("\n", " ") for name in grid.header], row, strict=True)) for row in grid.rows]
    results = runs[3].results
    auc, low, high = (results[f"attack/lira_online/auc{end}"] for end in ("", "_low", "_high"))
    total = results["disclosure/gnq_total_mean"]
    assert rows[3] == {
        "Run": "d",
        "Defense": "DP-SGD",
        "ε set": "8",
        "Batch size": "64",
        "Epochs": "20",
        "Seed": "0",
        "Test accuracy": "88.3 %",
        "GNQ total, mean": f"{total:.3g}",
        "LiRA online AUC": f"{auc:.3f} [{low:.3f}, {high:.3f}]",
        "TPR at 1 % FPR": "2.0 % [1.0, 4.0]",
        "DLG SSIM at init": "0.997",
        "Members censored": "–",
        "ε by the accountant": "8.00",
        "Whole run": "2 min 43 s",
    }
    assert [row["ε set"] for row in rows] == ["–", "–", "–", "8"]
    assert [row["ε by the accountant"] for row in rows] == ["–", "–", "–", "8.00"]
    assert [row["Members censored"] for row in rows] == ["–", "10.0 %", "10.0 %", "–"]


def test_an_attack_that_is_not_working_is_not_a_score(runs: list[ComparedRun]) -> None:
    broken = run("none", **{"attack/dlg/working": False})
    assert "attack not working" in comparison_grid([broken]).rows[0]
    withheld = run("none", **{"attack/dlg/init/n_scored": 0, "attack/dlg/init/n_not_released": 4})
    assert "not released" in comparison_grid([withheld]).rows[0]


def test_other_settings_appear_only_where_they_differ() -> None:
    same = [run("none", **{"setting/damping": 0.1}), run("none", **{"setting/damping": 0.1})]
    assert "Damping" not in comparison_grid(same).header
    different = comparison_grid([run("none", **{"setting/damping": 0.1}), run("none", **{"setting/damping": 0.2})])
    column = different.header.index("Damping")
    assert [row[column] for row in different.rows] == ["0.1", "0.2"]


def test_a_setting_that_only_one_run_has_does_not_vary() -> None:
    mine = run("dp_sgd", **{"setting/defense.clip_norm": 1.0})
    assert "Defense.clip norm" not in comparison_grid([run("none"), mine]).header
    other = run("dp_sgd", **{"setting/defense.clip_norm": 2.0})
    assert "Defense.clip norm" in comparison_grid([run("none"), mine, other]).header


def test_copies_are_counted_in_the_table() -> None:
    assert comparison_grid([ComparedRun("a", {"defense/name": "none"}, copies=3)]).rows[0][0] == "a (×3)"


def test_constant_columns_move_out_and_dashes_go(runs: list[ComparedRun]) -> None:
    grid, same = split_constant(comparison_grid(runs))
    assert ("Epochs", "20") in same
    assert "Epochs" not in grid.header
    assert "ε set" in grid.header
    lonely, nothing = split_constant(comparison_grid(runs[:1]))
    assert (lonely, nothing) == (comparison_grid(runs[:1]), ())


def test_points_lie_at_accuracy_and_auc_with_their_interval(runs: list[ComparedRun]) -> None:
    value = runs[3].results["attack/lira_online/auc"]
    lopsided = {"attack/lira_online/auc_low": value - 0.01, "attack/lira_online/auc_high": value + 0.07}
    runs = [*runs[:3], ComparedRun("d", {**runs[3].results, **lopsided})]
    figure = utility_against_attack(runs)
    assert figure is not None
    bars = {item.get_label(): item for item in figure.axes[0].containers if isinstance(item, ErrorbarContainer)}
    assert list(bars) == ["no defense", "random censor (control)", "GNQ censor", "DP-SGD"]
    assert len({bar[0].get_color() for bar in bars.values()}) == 4
    results = runs[3].results
    x, y = bars["DP-SGD"][0].get_data()
    assert (x[0], y[0]) == pytest.approx((results["attack/lira_online/auc"], 88.3))
    ends = bars["DP-SGD"][2][0].get_segments()[0][:, 0]
    low, high = results["attack/lira_online/auc_low"], results["attack/lira_online/auc_high"]
    assert ends.tolist() == pytest.approx([low, high])
    assert [text.get_text() for text in figure.axes[0].texts] == ["ε = 8"]


def test_many_equal_points_keep_their_labels_apart() -> None:
    crowd = [run("dp_sgd", str(seed), epsilon) for seed in range(4) for epsilon in (1.0, 2.0, 8.0)]
    figure = utility_against_attack([*crowd, run("none")])
    assert figure is not None
    assert len(figure.axes[0].texts) == 12
    assert find_overlaps(figure) == []


def test_runs_without_an_attack_are_counted(runs: list[ComparedRun]) -> None:
    lacking = run("none", **{"attack/lira_online/auc": None})
    figure = utility_against_attack([*runs, lacking])
    assert figure is not None
    assert [text.get_text() for text in figure.texts] == ["1 runs without an accuracy or an AUC are not shown."]
    assert utility_against_attack([lacking]) is None


def test_page_is_self_contained_and_escaped(runs: list[ComparedRun]) -> None:
    evil = "<script>alert(1)</script>"
    html = render_comparison(Collection((ComparedRun(evil, {"defense/name": evil}),), (evil,)), b"PNG")
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 3
    assert "http" not in html.replace("http-equiv", "")
