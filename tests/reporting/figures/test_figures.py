from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from sklearn.metrics import auc

from gradient_disclosure.reporting.figures.agreement import gnq_against_attack
from gradient_disclosure.reporting.figures.catalog import FIGURES, draw_all
from gradient_disclosure.reporting.figures.distribution import gnq_distribution
from gradient_disclosure.reporting.figures.extremes import highest_and_lowest
from gradient_disclosure.reporting.figures.pixels import displayable
from gradient_disclosure.reporting.figures.reconstructions import reconstruction_figure
from gradient_disclosure.reporting.figures.roc import roc
from gradient_disclosure.reporting.figures.style import new_figure
from gradient_disclosure.reporting.record import EXAMPLE_COLUMNS, RunRecord
from tests.reporting.fake_record import tabular_record
from tests.reporting.overlaps import find_overlaps


@pytest.fixture(scope="module")
def figures(censored_run: RunRecord) -> dict[str, Figure]:
    return draw_all(censored_run)


def drawn(figure: Figure | None) -> Figure:
    assert figure is not None
    return figure


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]


@pytest.mark.parametrize("name", [figure.name for figure in FIGURES])
def test_no_text_overlaps_or_leaves_its_figure(figures: dict[str, Figure], name: str) -> None:
    assert find_overlaps(figures[name]) == []


def test_the_search_for_overlaps_finds_them() -> None:
    figure = new_figure(2.0, 1.0)
    for x, text in ((0.3, "left"), (0.35, "right"), (0.98, "beyond")):
        figure.text(x, 0.5, text)
    assert find_overlaps(figure) == [("beyond", "(edge)"), ("left", "right")]


def test_histogram_counts_every_member_once(censored_run: RunRecord) -> None:
    axes = drawn(gnq_distribution(censored_run)).axes[0]
    kept, censored = axes.containers[0], axes.containers[1]
    assert sum(bar.get_height() for bar in kept) == 180
    assert sum(bar.get_height() for bar in censored) == 20
    assert axes.get_xscale() == "log"
    marks = {line.get_label(): line.get_xdata()[0] for line in axes.lines}
    totals = censored_run.examples["gnq_total"].dropna()
    assert sorted(marks.values()) == pytest.approx(sorted([totals.median(), totals.mean()]))


@pytest.mark.parametrize("spread", [1.2, 4.0, 1e5])
def test_axes_are_numbered_whatever_their_range(censored_run: RunRecord, spread: float) -> None:
    examples = censored_run.examples.copy()
    totals = 7.0 * np.geomspace(1.0, spread, len(examples))
    examples["gnq_total"] = np.where(examples["member"], totals, np.nan)
    figure = drawn(gnq_distribution(replace(censored_run, examples=examples)))
    assert find_overlaps(figure) == []
    axes = figure.axes[0]
    low, high = axes.get_xlim()
    numbered = [tick for tick in axes.xaxis.get_major_ticks() if low < tick.get_loc() < high]
    assert len(numbered) >= 2
    for tick in numbered:
        assert float(tick.label1.get_text().replace(",", "")) == pytest.approx(tick.get_loc(), rel=5e-3)


def test_members_with_zero_gnq_are_counted_beside_the_log_axis(censored_run: RunRecord) -> None:
    examples = censored_run.examples.copy()
    examples.loc[examples.index[examples["member"]][:4], "gnq_total"] = 0.0
    figure = drawn(gnq_distribution(replace(censored_run, examples=examples)))
    assert any(text.startswith("4 members with GNQ 0") for text in texts(figure))
    assert not any("GNQ 0" in text for text in texts(drawn(gnq_distribution(censored_run))))


def test_scatter_shows_members_only_with_their_own_scores(censored_run: RunRecord) -> None:
    figure = drawn(gnq_against_attack(censored_run))
    members = censored_run.examples[censored_run.examples["member"]]
    assert not any("not shown" in text for text in texts(figure))
    for axes, column in zip(figure.axes, ("gnq_total", "squared_norm_total"), strict=True):
        points = np.concatenate([c.get_offsets() for c in axes.collections if isinstance(c, PathCollection)])
        expected = members[[column, "lira_online"]].to_numpy(float)
        np.testing.assert_allclose(np.sort(points, axis=0), np.sort(expected, axis=0))
        assert axes.get_xscale() == "log"
        rho = censored_run.results[f"disclosure/spearman_{column}_lira_online"]
        low = censored_run.results[f"disclosure/spearman_{column}_lira_online_low"]
        assert f"Spearman {rho:.3f} [{low:.3f}," in axes.get_title(loc="left")


def test_roc_curves_are_the_counts_above_each_threshold(censored_run: RunRecord) -> None:
    axes = drawn(roc(censored_run)).axes[0]
    examples = censored_run.examples
    member = examples["member"].to_numpy()
    lines = {line.get_label().split("\n")[0]: line for line in axes.lines}
    for label, column in (
        ("LiRA online", "lira_online"),
        ("LiRA offline", "lira_offline"),
        ("Loss threshold", "loss_threshold"),
    ):
        scores = examples[column].to_numpy()
        counted = [((scores[~member] >= t).mean(), (scores[member] >= t).mean()) for t in np.sort(scores)[::-1]]
        x, y = (np.asarray(values, dtype=float) for values in lines[label].get_data())
        np.testing.assert_allclose(np.stack([x[1:], y[1:]], axis=1), counted)
        assert auc(x, y) == pytest.approx(float(censored_run.results[f"attack/{column}/auc"] or 0))
    x, y = lines["chance"].get_data()
    np.testing.assert_allclose(x, y)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlim()[0] == pytest.approx(1 / 200)


def test_an_attack_without_scores_is_not_drawn(censored_run: RunRecord) -> None:
    record = replace(censored_run, examples=censored_run.examples.assign(loss_threshold=float("nan")))
    assert not any("Loss threshold" in text for text in texts(drawn(roc(record))))


def test_reconstructions_say_what_was_not_released_and_score_the_rest(censored_run: RunRecord) -> None:
    figure = drawn(reconstruction_figure(censored_run))
    counts = Counter(texts(figure))
    withheld = [item for item in censored_run.reconstructions if item.reconstructed is None]
    assert counts["not\nreleased"] == len(withheld) == 3
    scored = [item for item in censored_run.reconstructions if item.reconstructed is not None]
    assert sum(count for text, count in counts.items() if text.startswith("SSIM")) == len(scored)
    assert counts["SSIM 0.998"] == 2
    assert counts["Inverting\nGradients\nattack\nnot working"] == 4
    assert counts["DLG"] == 4
    pictures = [image for axes in figure.axes for image in axes.images]
    assert len(pictures) == len(scored) + 4 * 4


def test_each_picture_is_the_one_its_caption_names(censored_run: RunRecord) -> None:
    figure = drawn(reconstruction_figure(censored_run))
    for index in (3, 77):
        axes = [axes for axes in figure.axes if axes.get_xlabel() == f"example {index}"]
        assert len(axes) == 4
        assert censored_run.images is not None
        np.testing.assert_allclose(axes[0].images[0].get_array()[..., 0], censored_run.images[index, 0].numpy())


@pytest.mark.parametrize("count", [1, 5, 12])
def test_any_number_of_examples_fits(censored_run: RunRecord, count: int) -> None:
    one = censored_run.reconstructions[0]
    items = tuple(replace(one, index=index, moment=moment) for index in range(count) for moment in ("control", "end"))
    figure = drawn(reconstruction_figure(replace(censored_run, reconstructions=items)))
    assert figure.get_size_inches()[0] == 9.0
    assert all(axes.get_position().x0 >= 0 and axes.get_position().x1 <= 1 for axes in figure.axes)
    assert ("The first 8 of the 12 examples attacked." in texts(figure)) == (count == 12)


def test_an_attack_that_was_not_run_at_a_moment_is_said(censored_run: RunRecord) -> None:
    dlg = [item for item in censored_run.reconstructions if item.attack == "dlg"]
    idlg = [item for item in censored_run.reconstructions if item.attack == "idlg" and item.moment == "init"]
    figure = drawn(reconstruction_figure(replace(censored_run, reconstructions=(*dlg, *idlg))))
    assert Counter(texts(figure))["not\nattacked"] == 3 * 4


def test_extremes_are_the_ends_of_the_ranking_with_label_and_gnq(censored_run: RunRecord) -> None:
    figure = drawn(highest_and_lowest(censored_run))
    ranked = censored_run.examples[censored_run.examples["member"]].sort_values("gnq_total", ascending=False)
    expected = [*ranked["index"].head(16), *ranked["index"].tail(16)[::-1]]
    assert len(figure.axes) == 32
    for axes, index in zip(figure.axes, expected, strict=True):
        assert censored_run.images is not None
        np.testing.assert_allclose(axes.images[0].get_array()[..., 0], censored_run.images[index, 0].numpy())
        label = censored_run.class_name(int(censored_run.examples.loc[index, "label"]))
        assert axes.get_xlabel().startswith(f"{label}\nGNQ ")


def test_few_members_are_not_shown_twice(censored_run: RunRecord) -> None:
    few = censored_run.examples[censored_run.examples["member"]].head(6)
    assert len(drawn(highest_and_lowest(replace(censored_run, examples=few))).axes) == 6


def test_tabular_data_have_no_figure_of_examples() -> None:
    record = tabular_record()
    assert highest_and_lowest(record) is None
    assert reconstruction_figure(record) is None
    assert not any(figure.shows_examples for figure in FIGURES if figure.name in draw_all(record))


def test_every_figure_that_shows_examples_is_marked(figures: dict[str, Figure]) -> None:
    marked = {figure.name for figure in FIGURES if figure.shows_examples}
    with_pictures = {name for name, figure in figures.items() if any(axes.images for axes in figure.axes)}
    assert marked == with_pictures == {"reconstructions", "highest_and_lowest_gnq"}


def test_a_run_without_anything_draws_nothing(censored_run: RunRecord) -> None:
    empty = replace(censored_run, examples=censored_run.examples.iloc[:0][list(EXAMPLE_COLUMNS)], reconstructions=())
    assert draw_all(empty) == {}


def test_colors_keep_their_channels_and_are_clamped() -> None:
    image = torch.tensor([[[-1.0]], [[0.0]], [[3.0]]])
    np.testing.assert_allclose(displayable(image, (-1.0, 1.0))[0, 0], [0.0, 0.5, 1.0])


def test_a_color_run_draws(censored_run: RunRecord) -> None:
    assert censored_run.images is not None
    record = replace(censored_run, images=censored_run.images.expand(-1, 3, -1, -1))
    assert len(drawn(highest_and_lowest(record)).axes) == 32
