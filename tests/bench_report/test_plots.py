"""Plots keep one look, say what they cannot show, and are the same bytes every time."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fkd_bench import compare
from fkd_bench.compare import plots, site_plots
from fkd_bench.compare.measures import Record
from fkd_bench.compare.plot_style import (
    INK,
    OWN,
    PALETTE,
    QUIET,
    VARIABLES,
    LacksData,
    Look,
    spread_out,
    styled,
    thinned,
)
from fkd_bench.compare.plot_svg import svg, within_page
from fkd_bench.compare.survey import Survey
from tests.bench_report.made_up import EXPERIMENT, METHODS, cell, grid

RECORDS = grid(partitions=("dirichlet:0.1",), seeds=(0, 1))
LOOK = Look.of(Survey.of(RECORDS, EXPERIMENT), frozenset({"FedMD"}))
Draw = Callable[..., Figure]

DRAWN: dict[str, Draw] = {
    "accuracy_by_round": plots.accuracy_by_round,
    "accuracy_by_bytes": plots.accuracy_by_bytes,
    "seconds_by_phase": plots.seconds_by_phase,
    "partition": lambda records, _, title="": site_plots.partition(records, title),
    "weights": site_plots.weights,
    "accuracy_by_site": site_plots.accuracy_by_site,
    "recall_by_class": site_plots.recall_by_class,
    "reliability": site_plots.reliability,
}


def by_clients() -> list[Record]:
    return [
        cell(method, "dirichlet:0.1", seed, clients=count)
        for method in METHODS[-2:] for count in (10, 20, 40) for seed in (0, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_is_small_well_formed_and_the_same_bytes_whatever_the_machine_prefers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = svg(DRAWN[name](RECORDS, LOOK))
    with mpl.rc_context({"axes.labelsize": 30, "grid.linestyle": ":", "svg.hashsalt": None}):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
        assert svg(DRAWN[name](RECORDS, LOOK)) == once
    ElementTree.fromstring(once)
    assert len(once) < 32_000
    assert "<metadata" not in once


@pytest.mark.parametrize("name", DRAWN)
def test_one_method_alone_has_every_plot(name: str) -> None:
    alone = [record for record in RECORDS if record["label"] == RECORDS[-1]["label"]]
    look = Look.of(Survey.of(alone, EXPERIMENT), frozenset())
    ElementTree.fromstring(svg(DRAWN[name](alone, look)))


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_of_a_plot_is_cut_off_however_long_its_names(name: str) -> None:
    long = [{**record, "label": f"{record['label']} with more options"} for record in RECORDS]
    look = Look.of(Survey.of(long, EXPERIMENT), frozenset())
    figure = DRAWN[name](long, look, "correction anchors + moments, partition dirichlet:0.1")
    drawn = styled(lambda: figure.get_tightbbox(FigureCanvasAgg(figure).get_renderer()))()
    width, height = figure.get_size_inches()
    assert min(drawn.x0, drawn.y0, width - drawn.x1, height - drawn.y1) >= 0


@pytest.mark.parametrize("name", DRAWN)
def test_a_plot_without_its_data_says_so_in_a_sentence(name: str) -> None:
    bare = [
        {**record, "rounds": [], "weights": None, "calibration": None, "recall": None, "clients_matched": {},
         "class_counts": [], "seconds": None}
        for record in RECORDS
    ]  # fmt: skip
    with pytest.raises(LacksData, match=r"^[A-Z][a-z ]+: .*no cell .*\.$"):
        DRAWN[name](bare, LOOK)


def test_accuracy_by_an_axis_has_a_point_for_each_value_and_a_band() -> None:
    figure = plots.accuracy_by_axis(by_clients(), LOOK, "clients")
    lines = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]  # type: ignore[arg-type]
    assert [list(line.get_xdata()) for line in lines] == [[10, 20, 40]] * 2  # type: ignore[arg-type]
    assert len(figure.axes[0].collections) == 2


def test_accuracy_by_words_is_refused() -> None:
    records = [cell(METHODS[0], "dirichlet:0.1", 0, norm=norm) for norm in ("batch", "layer")]
    with pytest.raises(LacksData, match="needs two or more values, all of them numbers"):
        plots.accuracy_by_axis(records, LOOK, "norm")


def test_a_method_keeps_its_colour_in_every_plot_and_fkd_rtm_is_emphasised() -> None:
    assert LOOK.colour("FKD-RTM") == OWN
    looks = {(LOOK.colour(label), str(LOOK.line(label)["linestyle"])) for label in LOOK.labels}
    assert len(looks) == len(METHODS)
    for draw in (plots.accuracy_by_round, plots.accuracy_by_bytes):
        texts = {text.get_text(): text for text in draw(RECORDS, LOOK).axes[0].texts}
        assert texts["FedProx"].get_color() == LOOK.colour("FedProx")
        assert texts["FKD-RTM"].get_fontweight() == "bold"
        assert "FedMD†" in texts


def test_names_beside_lines_do_not_overlap() -> None:
    figure = plots.accuracy_by_round(RECORDS, LOOK)
    places = sorted(text.xyann[1] for text in figure.axes[0].texts)  # type: ignore[attr-defined]
    assert len(places) == 15
    height = figure.axes[0].get_position().height * figure.get_figheight() * 72
    assert min(b - a for a, b in pairwise(places)) * height >= 8


@pytest.mark.parametrize(
    "places, gap, expected",
    [
        ([0.2, 0.5], 0.1, [0.2, 0.5]),
        ([0.5, 0.5], 0.1, [0.45, 0.55]),
        ([0.5, 0.5, 0.62], 0.1, [0.44, 0.54, 0.64]),
        ([1.2, 1.3], 0.1, [0.94, 1.04]),
        ([], 0.1, []),
    ],
)
def test_places_are_moved_as_little_as_need_be(
    places: list[float], gap: float, expected: list[float]
) -> None:
    assert spread_out(places, gap) == pytest.approx(expected)


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    assert thinned(5, 10) == [0, 1, 2, 3, 4]
    assert thinned(101, 5) == [0, 25, 50, 75, 100]


def test_the_page_has_every_colour_for_both_themes_and_all_that_name_something_are_readable() -> None:
    css = (Path(compare.__file__).parent / "report.css").read_text()
    themes = {name: pair for name, *pair in re.findall(r"(--[a-z0-9]+): light-dark\((#\w+), (#\w+)\)", css)}
    assert {colour: themes[name][0] for colour, name in VARIABLES.items()} == {
        name: name for name in VARIABLES
    }
    for colour in (OWN, *PALETTE, INK, QUIET):
        for shade, ground in zip(themes[VARIABLES[colour]], themes["--surface"], strict=True):
            assert contrast(shade, ground) >= 4.5


def test_many_classes_are_ranked_and_many_sites_drawn_without_their_names() -> None:
    record = cell(METHODS[-1], "dirichlet:0.1", 0)
    record |= {"recall": [0.5] * 99 + [None], "class_counts": [[1] * 100] * 80, "class_names": None}
    assert "classes from worst to best" in svg(site_plots.recall_by_class([record], LOOK))
    assert len(svg(site_plots.partition([record]))) < 12_000


def test_sites_are_in_the_order_of_their_numbers_whatever_the_records_order() -> None:
    names = ["shard0", "shard1", "shard10", "shard2"]
    record = cell(METHODS[-1], "dirichlet:0.1", 0) | {
        "clients_matched": dict.fromkeys(names, 0.5), "class_counts": [[8], [4], [2], [0]], "class_names": ["a"],
        "weights": dict.fromkeys(names, 0.25),
    }  # fmt: skip
    shades = site_plots.partition([record]).axes[0].images[0].get_array()
    assert shades is not None
    assert [round((shade / 0.75) ** 2 * 8) for shade in shades[0, :, 3]] == [8, 4, 0, 2]
    axes = site_plots.weights([record], LOOK).axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["shard0", "shard1", "shard2", "shard10"]
    assert [bar.get_width() * 14 for bar in axes.patches] == pytest.approx([8, 4, 0, 2])  # type: ignore[attr-defined]


def test_bins_of_few_predictions_are_left_out_of_the_reliability() -> None:
    count, share = [0, 4, 0, 0, 96, 0, 0, 0, 0, 900], [place / 10 for place in range(10)]
    calibration = {"confidence": share, "accuracy": share, "count": count, "ece": 0.0, "nll": 0.0}
    record = {**cell(METHODS[-1], "dirichlet:0.1", 0), "calibration": calibration}
    line = site_plots.reliability([record], LOOK).axes[0].lines[1]
    assert list(line.get_xdata()) == pytest.approx([40, 90])  # type: ignore[arg-type]


def test_labels_are_text_in_a_file_and_in_a_page() -> None:
    hostile = '</text><script>alert(1)</script>" id="x" fill="#c2410c" $x_1$'
    record = {**cell(METHODS[0], "dirichlet:0.1", 0), "label": hostile, "class_names": [hostile] * 10}
    look = Look((hostile,))
    for draw in DRAWN.values():
        file = svg(draw([record], look))
        page = within_page(file, "a", hostile)
        for text in (file, page):
            assert "<script" not in text
            ElementTree.fromstring(
                text.replace("<svg ", '<svg xmlns:xlink="x" ', 1) if text is page else text
            )


def test_dollars_in_a_label_are_no_formula() -> None:
    record = {**cell(METHODS[0], "dirichlet:0.1", 0), "label": "$x_1$"}
    assert ">$x_1$<" in svg(plots.accuracy_by_round([record], Look(("$x_1$",))))


def test_in_a_page_a_figure_has_ids_of_its_own_and_the_pages_colours() -> None:
    file = svg(plots.accuracy_by_round(RECORDS, LOOK))
    first, second = (within_page(file, name, "what is seen") for name in ("a", "b"))
    assert ids(first)
    assert not ids(first) & ids(second)
    assert set(re.findall(r"url\(#([^)]+)\)", first)) <= ids(first)
    assert not re.search("|".join(VARIABLES), first)
    assert 'role="img" aria-label="what is seen"' in first


def ids(text: str) -> set[str]:
    found: list[Any] = re.findall(r' id="([^"]+)"', text)
    assert len(found) == len(set(found))
    return set(found)


def contrast(one: str, other: str) -> float:
    """Of WCAG 2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    shares = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
