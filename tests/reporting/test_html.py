from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.image import imread

from gradient_disclosure.reporting.glossary import GLOSSARY
from gradient_disclosure.reporting.html import render_report
from gradient_disclosure.reporting.record import RunRecord
from tests.reporting.fake_record import fake_record, tabular_record

PICTURE = b"\x89PNG not drawn here"
EVIL = "<script>alert(1)</script>\"><img src=x onerror='alert(2)'>"
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Every tag with its attributes, every text, and whether tags are closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())

    def attributes(self, name: str) -> list[str]:
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


@pytest.fixture(scope="module")
def page(censored_run: RunRecord) -> Page:
    return Page(render_report(censored_run, {"roc": PICTURE, "reconstructions": PICTURE}))


def test_tags_are_closed(page: Page) -> None:
    assert page.open == []


def test_nothing_outside_the_file_is_referred_to(page: Page, censored_run: RunRecord) -> None:
    html = re.sub(r"base64,[A-Za-z0-9+/=]+", "", render_report(censored_run, {"roc": PICTURE}))
    assert not re.search(r"https?://|url\(|@import|//[a-z]", html)
    assert all(source.startswith("data:image/png;base64,") for source in page.attributes("src"))
    assert all(link.startswith("#") for link in page.attributes("href"))
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"} == set()
    assert any("default-src 'none'" in content for content in page.attributes("content"))


def test_every_link_has_its_target(page: Page) -> None:
    targets = page.attributes("id")
    assert len(targets) == len(set(targets))
    assert {link[1:] for link in page.attributes("href")} <= set(targets)
    assert {f"term-{term.anchor}" for term in GLOSSARY} <= set(targets)


def test_malicious_names_are_text(censored_run: RunRecord) -> None:
    results = {**censored_run.results, "setting/model": EVIL, "meta/hardware": EVIL, "defense/name": EVIL}
    record = replace(censored_run, class_names=(EVIL,) * 10, results=results)
    html = render_report(record, {})
    page = Page(html)
    assert "<script" not in html
    assert "onerror" not in {name for _, attributes in page.tags for name in attributes}
    assert page.texts.count(EVIL) >= 25


def test_the_warning_says_whether_examples_are_shown(page: Page) -> None:
    assert "This report shows training examples" in page.texts
    tabular = Page(render_report(tabular_record(), {}))
    assert "This report shows training examples" not in tabular.texts
    assert "This report says which examples were members." in tabular.texts


def test_tabular_data_have_no_pictures_of_examples() -> None:
    page = Page(render_report(tabular_record(), {}))
    assert page.attributes("src") == []
    assert "Image" not in page.texts
    assert len([tag for tag, attributes in page.tags if tag == "tr"]) > 25


def test_missing_values_are_dashes(censored_run: RunRecord) -> None:
    results = dict.fromkeys(censored_run.results)
    html = render_report(replace(censored_run, results=results), {})
    cells = re.findall(r"<dd>(.*?)</dd></div>", html)
    assert len(cells) > 30
    assert set(cells) == {"–"}


def test_the_table_holds_the_25_highest_with_their_own_numbers(censored_run: RunRecord) -> None:
    # At the cap all figures in bits are alike: shrink them differently, so that no two columns can be mixed up.
    factors = {"bits_gaussian": 0.7, "bits_paper": 0.6, "attacker_accuracy_ceiling": 0.9}
    scaled = {column: censored_run.examples[column] * factor for column, factor in factors.items()}
    record = replace(censored_run, examples=censored_run.examples.assign(**scaled))
    html = render_report(record, {})
    body = html[html.index('<table class="ledger">') : html.index('id="settings"')]
    rows = re.findall(r"<tr>(.*?)</tr>", body, flags=re.S)[1:]
    texts = [[re.sub(r"<.*?>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row, flags=re.S)] for row in rows]
    expected = record.examples.sort_values("gnq_total", ascending=False).head(25)
    assert [int(row[2]) for row in texts] == expected["index"].tolist()
    first, top = texts[0], expected.iloc[0]
    assert first[3] == censored_run.class_name(top["label"])
    assert float(first[4]) == pytest.approx(top["gnq_total"], rel=5e-3)
    assert first[5] == f"{top['bits_gaussian']:.3f} cap"
    assert first[6] == f"{top['bits_paper']:.3f}"
    assert first[7] == f"{100 * top['attacker_accuracy_ceiling']:.1f} %"
    assert first[8] == f"{100 * top['attacker_tpr_ceiling_at_1pct_fpr']:.1f} %"
    assert float(first[9]) == pytest.approx(top["lira_online"], rel=5e-3)
    assert first[10] == "17"
    assert [row[10] for row in texts] == ["17"] * 20 + ["–"] * 5


def test_thumbnails_are_the_examples(censored_run: RunRecord) -> None:
    html = render_report(censored_run, {})
    body = html[html.index('<table class="ledger">') :]
    encoded = re.findall(r'src="data:image/png;base64,([^"]+)"', body)[0]
    pixels = imread(io.BytesIO(base64.b64decode(encoded)))[..., 0]
    index = int(censored_run.examples.loc[censored_run.examples["gnq_total"].idxmax(), "index"])
    assert censored_run.images is not None
    np.testing.assert_allclose(pixels, censored_run.images[index, 0].numpy(), atol=1 / 255)


def test_only_the_figures_given_are_shown_each_with_its_caption(page: Page) -> None:
    figures = [target for target in page.attributes("id") if target.startswith("figure-")]
    assert figures == ["figure-roc", "figure-reconstructions"]
    assert any("not proof of privacy" in text for text in page.texts)


@pytest.mark.parametrize("defense", ["none", "gnq_censor", "random_censor", "dp_sgd"])
def test_every_defense_renders(defense: str) -> None:
    assert Page(render_report(fake_record(defense=defense), {})).open == []
