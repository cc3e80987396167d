"""Plots of data sites and classes: who has which classes, who weighs how much, how each class and site fares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fkd_bench.compare.measures import Record, Spread, measure
from fkd_bench.compare.plot_style import (
    FOCUS,
    HEAT,
    INK,
    LEFT,
    LINE,
    OTHERS,
    QUIET,
    STRONGEST,
    LacksData,
    Look,
    axes,
    dots,
    name_ends,
    room_for,
    styled,
    thinned,
)
from fkd_common.printable import printable

MOST_NAMED = 30
"""Classes or sites whose names there is room for."""
MOST_NUMBERS = 12
"""Columns of a heat map up to which its numbers are written into it."""
MOST_SITES = 60
LEAST_SHARE = 0.005
"""Of all predictions, in a bin that is shown: fewer say little of how often they are right."""
MOST_DOTS = 120


@styled
def partition(records: Sequence[Record], title: str = "") -> Figure:
    """Training samples by class and site, as shades of the largest number; of the first cell that has them.

    Raises:
        LacksData: None has.
    """
    found = next((record for record in records if record.get("class_counts")), None)
    if found is None:
        raise LacksData("Partition: no cell counted its sites' classes.")
    by_site = found["class_counts"]
    names = list(found.get("clients_matched") or ())
    if len(names) == len(by_site):
        by_site = [
            own for _, own in sorted(zip(names, by_site, strict=True), key=lambda pair: _natural(pair[0]))
        ]
    counts = np.array(by_site, dtype=np.float64).T
    classes, sites = counts.shape
    classes_named = _class_names(found, classes) if classes <= MOST_NAMED else []
    inner = min(4.6, 0.2 * classes) if classes <= MOST_NAMED else 3.4
    figure, ax = axes(
        inner + 0.8,
        left=room_for(classes_named) if classes_named else LEFT,
        right=0.2,
        title=title,
        bottom=0.45,
    )
    shades = np.empty((classes, sites, 4))
    shades[..., :3] = HEAT
    shades[..., 3] = STRONGEST * np.sqrt(counts / max(counts.max(), 1.0))
    ax.imshow(shades, interpolation="none", aspect="auto")
    ax.grid(visible=False)
    ax.set_xlabel(f"site (darkest: {counts.max():,.0f} samples, blank: none)")
    ax.xaxis.set_major_locator(MaxNLocator(min(sites, 12), integer=True))
    if classes_named:
        ax.set_yticks(range(classes), classes_named)
    else:
        ax.set_ylabel("class")
    if sites <= MOST_NUMBERS and classes <= MOST_NAMED:
        for row, column in zip(*np.nonzero(counts), strict=True):
            ax.text(column, row, _short(counts[row, column]), ha="center", va="center", fontsize=6, color=INK)
    return figure


@styled
def weights(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """Each site's weight alpha_k in the last average, beside its share of these sites' samples; one seed.

    Labels that weigh alike share their dots.

    Raises:
        LacksData: No cell has weights.
    """
    own = {label: cell for label in look.labels if (cell := _first(records, label, "weights"))}
    if not own:
        raise LacksData("Weights: no cell says how its last average weighed the sites.")
    alike: dict[tuple[tuple[str, float], ...], list[str]] = {}
    for label, cell in own.items():
        rounded = tuple(sorted((name, round(share, 4)) for name, share in cell["weights"].items()))
        alike.setdefault(rounded, []).append(label)
    groups = sorted(alike.items(), key=lambda group: look.emphasised not in group[1])[:FOCUS]
    sites = sorted({name for cell in own.values() for name in cell["weights"]}, key=_natural)[:MOST_SITES]
    names = [look.name(site) for site in sites]
    height = 1.0 + 0.17 * len(sites) + 0.17 * len(groups)
    figure, ax = axes(
        height, left=room_for(names), right=0.2, title=title, bottom=0.5 + 0.17 * (len(groups) + 1)
    )
    weighed, labels = groups[0]
    shares = _sample_shares(own[labels[0]], [name for name, _ in weighed])
    if shares:
        bars = [shares.get(site, 0.0) for site in sites]
        said = f"share of the samples {look.name(_leader(look, labels))} averaged over"
        ax.barh(range(len(sites)), bars, height=0.8, color=LINE, label=said)
    for place, (group, labels) in enumerate(groups):
        by_site = dict(group)
        there = [(by_site[site], row) for row, site in enumerate(sites) if site in by_site]
        label = _leader(look, labels)
        dots(
            ax,
            [share for share, _ in there],
            [row + 0.16 * (place - (len(groups) - 1) / 2) for _, row in there],
            look.colour(label),
            4.5 if label == look.emphasised else 3.5,
            label=_named(look, label, len(labels)),
            zorder=5,
        )
    ax.set_yticks(range(len(sites)), names)
    ax.set_ylim(len(sites) - 0.5, -0.5)
    ax.set_xlim(left=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("weight in the last average")
    figure.legend(loc="lower left", ncols=1, handlelength=0.6)
    return figure


@styled
def accuracy_by_site(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """Personal accuracy of every site and seed as dots, their mean as a bar; a row for each label.

    Raises:
        LacksData: No cell has personal models.
    """
    own = {
        label: [
            100 * score
            for one in records
            if one["label"] == label
            for score in (one.get("clients_matched") or {}).values()
            if score is not None
        ]
        for label in look.labels
    }
    own = {label: scores for label, scores in own.items() if scores}
    if not own:
        raise LacksData("Accuracy by site: no cell scored personal models.")
    names = [look.name(label) for label in own]
    height = 0.75 + 0.2 * len(own)
    figure, ax = axes(height, left=room_for(names), right=0.25, title=title)
    for row, (label, scores) in enumerate(own.items()):
        shown = [sorted(scores)[place] for place in thinned(len(scores), MOST_DOTS)]
        dots(ax, shown, [row] * len(shown), look.colour(label), 4, alpha=0.45)
        mean = float(np.mean(scores))
        ax.plot([mean, mean], [row - 0.36, row + 0.36], color=INK, linewidth=1.6, zorder=6)
    ax.set_yticks(range(len(own)), names)
    for text, label in zip(ax.get_yticklabels(), own, strict=True):
        text.set_fontweight("bold" if label == look.emphasised else "normal")
    ax.set_ylim(len(own) - 0.4, -0.6)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("personal accuracy, %; bar: mean")
    return figure


@styled
def recall_by_class(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """Recall of every class by the global model, mean over seeds; the emphasised and the best labels in colour.

    With more classes than can be named, each label's recalls from worst to best.

    Raises:
        LacksData: No cell has a global model's recall.
    """
    recalls = {
        label: _mean_recall([one["recall"] for one in records if one["label"] == label and one.get("recall")])
        for label in look.labels
    }
    recalls = {label: recall for label, recall in recalls.items() if np.isfinite(recall).any()}
    if not recalls:
        raise LacksData("Recall by class: no cell has a global model's recall.")
    classes = len(next(iter(recalls.values())))
    focus = look.focus({label: float(np.nanmean(recall)) for label, recall in recalls.items()})
    if classes > MOST_NAMED:
        return _recall_by_rank(recalls, focus, look, title)
    first = next(one for one in records if one.get("recall"))
    names = _class_names(first, classes)
    rest = [recalls[label] for label in recalls if label not in focus]
    keys = len(focus) + bool(rest)
    height = 0.9 + 0.24 * classes + 0.17 * ((keys + 1) // 2)
    figure, ax = axes(
        height, left=room_for(names), right=0.25, title=title, bottom=0.5 + 0.17 * ((keys + 1) // 2)
    )
    rows = np.arange(classes, dtype=np.float64)
    for place, recall in enumerate(rest):
        name = f"{len(rest)} more" if place == 0 else "_"
        dots(ax, list(recall), list(rows), OTHERS, 3, label=name, alpha=0.55, zorder=2)
    for place, label in enumerate(focus):
        apart = 0.14 * (place - (len(focus) - 1) / 2)
        size = 5.5 if label == look.emphasised else 4
        name = look.name(label)
        dots(ax, list(recalls[label]), list(rows + apart), look.colour(label), size, label=name, zorder=4)
    ax.set_yticks(range(classes), names)
    ax.set_ylim(classes - 0.4, -0.6)
    ax.set_xlim(-2, 102)
    ax.set_xlabel("recall, %")
    figure.legend(loc="lower center", ncols=2, handlelength=0.6)
    return figure


@styled
def reliability(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """Accuracy over confidence in ten bins, all seeds' predictions together, with the mean ECE.

    Raises:
        LacksData: No cell has a calibration.
    """
    own = {
        label: [
            one
            for one in records
            if one["label"] == label and sum((one.get("calibration") or {}).get("count", ()))
        ]
        for label in look.labels
    }
    own = {label: cells for label, cells in own.items() if cells}
    if not own:
        raise LacksData("Reliability: no cell has its global model's calibration.")
    scores = {label: _mean(cells, "global") for label, cells in own.items()}
    focus = look.focus(scores)
    names = {label: f"{look.name(label)} {_mean(own[label], 'ece'):.1f} %" for label in focus}
    figure, ax = axes(2.95, left=LEFT, right=room_for(list(names.values())), title=title)
    ax.plot([0, 100], [0, 100], color=QUIET, linewidth=0.8, linestyle=(0, (2, 2)))
    ends = []
    for label in focus:
        confidence, accuracy = _bins(own[label])
        ax.plot(confidence, accuracy, marker=look.marker(label), markersize=3, **look.line(label))
        ends.append(
            (confidence[-1], accuracy[-1], names[label], look.colour(label), label == look.emphasised)
        )
    ax.set_xlim(0, 100)
    ax.set_ylim(0, 100)
    ax.set_xlabel("confidence, %")
    ax.set_ylabel("accuracy, %")
    name_ends(ax, ends, height=2.2)
    return figure


# -- parts ------------------------------------------------------------------------------------------------


def _recall_by_rank(
    recalls: dict[str, NDArray[np.float64]], focus: Sequence[str], look: Look, title: str
) -> Figure:
    figure, ax = axes(2.9, left=LEFT, right=room_for([look.name(label) for label in recalls]), title=title)
    ends = []
    for label in recalls:
        y = np.sort(recalls[label][np.isfinite(recalls[label])])
        x = np.arange(1, len(y) + 1)
        if label in focus:
            ax.plot(x, y, **look.line(label))
            ends.append(
                (float(x[-1]), float(y[-1]), look.name(label), look.colour(label), label == look.emphasised)
            )
        else:
            ax.plot(x, y, color=OTHERS, linewidth=0.7, alpha=0.6)
    ax.set_xlabel("classes from worst to best; grey: the others")
    ax.set_ylabel("recall, %")
    ax.set_ylim(0, 102)
    name_ends(ax, ends, height=2.15)
    return figure


def _mean_recall(cells: Sequence[Sequence[float | None]]) -> NDArray[np.float64]:
    """(C,) percent, NaN for a class that no cell could be tested on; empty without cells."""
    by_class = [Spread.over(values) for values in zip(*cells, strict=True)]
    return np.array([np.nan if spread is None else 100 * spread.mean for spread in by_class])


def _class_names(record: Record, classes: int) -> list[str]:
    names = record.get("class_names") or [str(place) for place in range(classes)]
    short = [printable(str(name)) for name in names]
    return [name if len(name) <= 18 else f"{name[:17]}…" for name in short]


def _short(count: float) -> str:
    return f"{count:.0f}" if count < 1000 else f"{count / 1000:.1f}k"


def _first(records: Sequence[Record], label: str, name: str) -> Record | None:
    return next((one for one in records if one["label"] == label and one.get(name)), None)


def _natural(name: str) -> tuple[str, int]:
    letters = name.rstrip("0123456789")
    return letters, int(name[len(letters) :] or 0)


def _named(look: Look, label: str, count: int) -> str:
    others = f" and {count - 1} {'others' if count > 2 else 'other'} alike" if count > 1 else ""
    return look.name(label) + others


def _leader(look: Look, labels: Sequence[str]) -> str:
    return next((label for label in labels if label == look.emphasised), labels[0])


def _sample_shares(record: Record, sites: Sequence[str]) -> dict[str, float]:
    """Of these sites' samples, theirs; empty where the cell does not count those of as many sites as it names."""
    totals = [sum(counts) for counts in record.get("class_counts") or ()]
    names = list(record.get("clients_matched") or ())
    if len(totals) != len(names):
        return {}
    samples = {site: count for site, count in zip(names, totals, strict=True) if site in sites}
    whole = sum(samples.values())
    return {site: count / whole for site, count in samples.items()} if whole else {}


def _mean(records: Sequence[Record], name: str) -> float:
    spread = Spread.over(map(measure(name).read, records))
    return spread.mean if spread else 0.0


def _bins(records: Sequence[Record]) -> tuple[list[float], list[float]]:
    """Percent confident and percent right of the bins that are not nearly empty."""
    parts = [record["calibration"] for record in records]
    count = np.array([part["count"] for part in parts], dtype=np.float64)
    total = count.sum(axis=0)
    filled = total >= max(1.0, LEAST_SHARE * total.sum())

    def pooled(name: str) -> list[float]:
        values = np.array([[value or 0.0 for value in part[name]] for part in parts])
        return [float(v) for v in 100 * (values * count).sum(axis=0)[filled] / total[filled]]

    return pooled("confidence"), pooled("accuracy")
