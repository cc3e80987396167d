"""One file that needs nothing beside it, the same bytes every time, in which nothing but the report speaks."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page

from fkd_bench.compare.measures import Record
from fkd_bench.compare.report import write_report
from fkd_common.errors import UsageError
from tests.bench_report.made_up import EXPERIMENT, METHODS, cell, failed, grid

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7*7 }}&amp;'
MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a whole grid, of which one cell failed and one is missing."""
    folder = tmp_path_factory.mktemp("report")
    write_report(whole(), EXPERIMENT, folder)
    return folder


def whole() -> list[Record]:
    cells = [one for one in grid() if one["label"] != "FedDF" or one["seed"] != 1]
    return [*cells[:-1], failed(METHODS[-1], "dirichlet:0.5", 2, f"refused: {HOSTILE}")]


def hostile_cell(seed: int = 0) -> Record:
    record = cell(METHODS[-1], "dirichlet:0.1", seed)
    return {
        **record,
        "label": HOSTILE, "class_names": [HOSTILE] * 10, "git": HOSTILE, "excluded": [HOSTILE],
        "varied": {"partition": HOSTILE}, "partition": HOSTILE, "model_hash": HOSTILE,
        "config": {"rounds": HOSTILE, HOSTILE: 1, "options": {HOSTILE: HOSTILE}},
        "weights": {HOSTILE: 0.4, "shard1": 0.6}, "clients_matched": {HOSTILE: 0.5, "shard1": 0.6},
        "seconds": {"wall": 1.0, "cpu": 1.0, "phases": {HOSTILE: 1.0}},
    }  # fmt: skip


class Elements(HTMLParser):
    """Names of elements, and every attribute that could lead elsewhere or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.references: set[str] = set()
        self.handlers: set[str] = set()
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        for name, value in attrs:
            if name in ("href", "xlink:href", "src", "srcset", "action", "data"):
                self.references.add(value or "")
            if name.startswith("on"):
                self.handlers.add(name)
            if name == "id":
                self.ids.append(value or "")


# -- files --------------------------------------------------------------------------------------------


def test_everything_is_written_and_what_an_earlier_call_left_is_replaced(tmp_path: Path) -> None:
    stale = tmp_path / "figures" / "of-before.svg"
    stale.parent.mkdir()
    stale.touch()
    write_report(grid(METHODS[-2:], seeds=(0,)), EXPERIMENT, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "figures", "report.html", "table.md", "table.tex",
    ]  # fmt: skip
    assert not stale.exists()
    names = {re.split(r"-\d-", path.stem)[0] for path in stale.parent.glob("*.svg")}
    assert names == {
        "accuracy-by-bytes", "accuracy-by-round", "accuracy-by-site", "partition", "recall-by-class",
        "reliability", "seconds-by-phase", "weights",
    }  # fmt: skip


def test_the_same_records_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    write_report(whole(), EXPERIMENT, tmp_path)
    files = sorted(path.relative_to(written) for path in written.rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file())
    for file in files:
        assert (tmp_path / file).read_bytes() == (written / file).read_bytes(), file


def test_without_a_single_record_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cell of this experiment has been run yet"):
        write_report([], EXPERIMENT, tmp_path)


def test_a_grid_of_which_every_cell_failed_still_has_a_report(tmp_path: Path) -> None:
    write_report([failed(METHODS[0], "dirichlet:0.1", 0, "no quorum")], EXPERIMENT, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "no quorum" in page
    for text in (page, (tmp_path / "table.md").read_text()):
        assert "No run has any of the measures" in text


# -- the page -----------------------------------------------------------------------------------------


def test_the_page_refers_to_nothing_outside_itself(written: Path) -> None:
    text = (written / "report.html").read_text()
    elements = Elements(text)
    assert all(reference.startswith(("#", "data:image/png;base64,")) for reference in elements.references)
    assert not elements.names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"@import|url\((?!#)", text)
    assert len(elements.ids) == len(set(elements.ids))
    targets = {reference[1:] for reference in elements.references if reference.startswith("#")}
    assert targets <= set(elements.ids)
    # What a reader need not be led to is at the beginning, or at the end.
    assert set(re.findall(r'<section id="([^"]+)"', text)) - targets == {"how-to-read"}


def test_the_answer_comes_first_then_what_is_needed_to_believe_it(written: Path) -> None:
    text = (written / "report.html").read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings[:2] == ["Answer", "How to read this"]
    assert headings[-5:] == ["Calibration", "Settings", "Runs", "Cost and command", "What is missing"]
    assert EXPERIMENT["question"].replace("'", "&#39;") in text
    assert EXPERIMENT["command"] in text
    finished = [one for one in whole() if not one["error"]]
    assert all(one["cell"][:12] in text for one in finished)
    assert f"All {len(finished)} finished runs" in text
    assert "1 run failed." in text
    assert "FedDF, partition dirichlet:0.1: seed 1 not run" in text


def test_labels_class_names_and_errors_stay_text_everywhere(tmp_path: Path) -> None:
    error = {**failed(METHODS[0], "dirichlet:0.1", 1, HOSTILE), "label": HOSTILE + "2"}
    words: dict[str, Any] = dict.fromkeys(("name", "title", "question", "command"), HOSTILE)
    write_report([hostile_cell(), error], {**EXPERIMENT, **words}, tmp_path)
    for file in tmp_path.rglob("*.*"):
        text = file.read_text()
        if file.suffix == ".html":
            elements = Elements(text)
            assert not elements.names & {"script", "img"}
            assert not elements.handlers
            assert "{{ 7*7 }}" in text
        elif file.suffix == ".svg":
            assert "<script" not in text
    rest = re.sub(r"<(/?sup|/?ins|br)>", "", (tmp_path / "table.md").read_text())
    assert not re.search(r"(?<!\\)<", rest)


def test_two_hundred_and_fifty_cells_stay_below_a_megabyte(tmp_path: Path) -> None:
    cells = grid(partitions=("dirichlet:0.1", "dirichlet:0.5", "dirichlet:1.0"), seeds=(0, 1, 2, 3, 4))
    assert len(cells) > 250
    write_report(cells, EXPERIMENT, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < MEGABYTE


def test_a_grid_of_many_settings_is_not_drawn_whole(tmp_path: Path) -> None:
    bare: Record = {
        "clients_matched": {},
        "recall": None,
        "weights": None,
        "calibration": None,
        "seconds": None,
    }
    cells = [
        {**cell(method, "dirichlet:0.1", 0, norm=norm, temperature=temperature), **bare}
        for method in METHODS[-2:] for norm in ("batch", "layer") for temperature in (1, 2, 4, 8)
    ]  # fmt: skip
    write_report(cells, {**EXPERIMENT, "columns": "norm"}, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "2 more settings are in the tables only" in page
    assert page.count("<caption>Results: ") == 4
    assert (tmp_path / "figures" / "accuracy-by-axis-1-temperature-partition-dirichlet-0.1-norm.svg").exists()


# -- in a browser -------------------------------------------------------------------------------------


def test_the_page_fits_windows_of_any_width_with_all_its_details_open(
    written: Path, browser: Browser
) -> None:
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((written / "report.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    for width in (360, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()


@pytest.mark.parametrize("width, theme", [(360, "light"), (1280, "dark")])
def test_the_page_keeps_nobody_out(written: Path, browser: Browser, width: int, theme: Any) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
    page.goto((written / "report.html").as_uri())
    assert violations(page) == []
    page.close()


def violations(page: Page) -> list[str]:
    """What axe-core finds that keeps somebody out."""
    page.evaluate(AXE_SCRIPT)
    found = page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for one in found
        for node in one["nodes"][:3]
    ]
