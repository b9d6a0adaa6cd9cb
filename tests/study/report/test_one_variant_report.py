"""The report: one page that needs nothing from outside and trusts nothing from inside."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from solera.core.meter import size
from solera.data import datasets
from solera.data.dataset import Dataset
from solera.study.files.reader import Study, parse
from solera.study.formatting import mean_and_spread, number
from solera.study.report import blocks
from solera.study.report.figures import drawn
from solera.study.report.html import render_html
from solera.study.report.report import sections_of
from solera.study.run import schemes
from solera.study.run.cells import cells_of
from solera.study.run.folder import environment, write_json
from solera.study.run.results import Result
from solera.study.run.runner import StudyRun

HOSTILE = "<script>alert('x')</script> & \"quoted\" http-equiv"
VOID = {"meta", "link", "br", "img", "hr"}


class Page(HTMLParser):
    """Checks that tags are closed in order and collects what the tests look at."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.styles: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id":
                self.ids[value or ""] += 1
            if name in ("href", "src", "xlink:href", "action", "srcset"):
                self.links.append(value or "")


def result(seed: int, **changes: object) -> Result:
    rng = np.random.default_rng(seed)
    history = [
        {
            "round": r,
            "clients": 5,
            "failures": 0,
            "bytes_down": 500,
            "bytes_up": 400,
            "loss": float(1 / (r + 1) + 0.1 * rng.random()),
        }
        for r in range(4)
    ]
    made = Result(
        seed=seed,
        rounds=4,
        metrics={"accuracy": 0.9 + seed / 100, "macro_f1": 0.8},
        bytes_down=2000,
        bytes_up=1600,
        seconds=1.5,
        client_metrics={"accuracy": 0.85},
        clients={k: float(rng.random()) for k in range(5)},
        history=history,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def study() -> Study:
    text = (
        f"# {HOSTILE}\nseeds = [0, 1, 2]\n[data]\nname = 'wine'\nclients = 5\n"
        "[partition]\nkind = 'Dirichlet'\nalpha = 1.0\n[learner]\nkind = 'FedLinear'\n"
    )
    return parse(text, file="run.toml", name="run")


Render = Callable[..., str]


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Render:
    """The page of a run of the data set wine, some of whose attributes are changed."""
    write_json(tmp_path / "environment.json", environment())

    def page(study: Study, results: list[Result], **changes: Any) -> str:
        def wine(name: str, options: Any) -> Dataset:
            return replace(datasets.wine(), **changes)

        monkeypatch.setattr(schemes, "_dataset", wine)
        run = StudyRun(study, tmp_path)
        run.cells = cells_of(study, study.variants()[0])
        run.results = {c.key: r for c in run.cells for r in results if r.seed == c.seed}
        return render_html(study.name, sections_of(run))

    return page


def test_one_file_with_words_tables_and_pictures(render: Render, study: Study) -> None:
    html = render(study, [result(0), result(1), result(2)])
    parsed = Page(html)
    assert parsed.tags["svg"] == 3  # learning curve, partition, clients
    assert parsed.tags["table"] == 5  # results, partition, fairness, traffic, environment
    assert parsed.tags["script"] == 0
    assert "0.910 ± 0.010" in parsed.text
    assert "over seeds" in parsed.text
    assert "worst" in parsed.text
    assert '<th scope="col">to clients</th><th scope="col">from clients</th>' in html
    assert (
        '<td data-column="to clients">2 kB</td><td data-column="from clients">1.6 kB</td>' in html
    )
    assert ": to clients" in parsed.text
    assert ": from clients" in parsed.text
    assert "Dirichlet(alpha=1.0)" in parsed.text
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_nothing_comes_from_outside(render: Render, study: Study) -> None:
    html = render(study, [result(0), result(1)])
    markup = re.sub(r"data:image/png;base64,[\w+/=\s]+", "", html)
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", markup)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in Page(html).links)


def test_pictures_do_not_share_ids(render: Render, study: Study) -> None:
    parsed = Page(render(study, [result(0), result(1)]))
    assert parsed.ids
    assert max(parsed.ids.values()) == 1
    inside = [link[1:] for link in parsed.links if link.startswith("#")]
    assert set(inside) <= set(parsed.ids)


def test_hostile_names_stay_text(render: Render, study: Study) -> None:
    html = render(
        replace(study, name=HOSTILE),
        [result(0, metrics={HOSTILE: 0.5}, client_metrics={})],
        title=HOSTILE,
        class_names=(HOSTILE, "b", "c"),
    )
    parsed = Page(html)
    assert parsed.tags["script"] == 0
    assert "<script" not in html
    assert parsed.text.count("<script>alert('x')</script>") >= 4


def test_the_same_results_give_the_same_page(render: Render, study: Study) -> None:
    assert render(study, [result(0)]) == render(study, [result(0)])


def test_what_is_missing_is_left_out(render: Render, study: Study) -> None:
    bare = result(0, metrics={}, client_metrics={}, clients={}, history=[], rounds=0)
    parsed = Page(render(study, [bare]))
    assert parsed.tags["svg"] == 1  # the partition
    assert "client_test = 0.2" in parsed.text
    assert "1 of 3 cells are finished" in parsed.text

    diverged = result(1, metrics={"macro_f1": 0.1}, history=[{"clients": 5, "loss": None}] * 4)
    parsed = Page(render(study, [result(0), diverged]))
    assert "–" in parsed.text


def test_blocks() -> None:
    content = [blocks.Paragraph("<p>"), blocks.Table([["<r>", 1]], ["", "<h>"])]
    html = render_html("a & b", [blocks.Section("<s>", content)])
    parsed = Page(html)
    assert "a & b" in parsed.text
    assert {"<s>", "<p>", "<r>", "<h>"} <= set(re.findall(r"<\w>", parsed.text))
    figure = Figure()
    figure.add_subplot().set_title("<title> & more")
    svg = drawn(figure, 'a "caption"').svg
    assert svg.startswith('<svg role="img" aria-label="a &quot;caption&quot;"')
    assert "<title> & more" in Page(svg).text


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 bytes"), (999, "999 bytes"), (1234, "1.23 kB"), (5.6e9, "5.6 GB"), (7e15, "7e+03 TB")],
)
def test_sizes(value: float, words: str) -> None:
    assert size(value) == words


def test_numbers() -> None:
    assert number(0.12345) == "0.123"
    assert number(123456.0) == "1.235e+05"
    assert mean_and_spread([0.5]) == "0.500"
    assert mean_and_spread([0.4, 0.6]) == "0.500 ± 0.141"
    assert mean_and_spread([0.4, None]) == mean_and_spread([]) == "–"
