"""Plots of methods against each other: accuracy by round, by bytes and by an axis; seconds by phase."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from fkd_bench.compare.measures import Point, Record, Spread, curve, measure, value_number
from fkd_bench.compare.plot_style import (
    LEFT,
    OTHERS,
    PALETTE,
    LacksData,
    Look,
    axes,
    name_ends,
    room_for,
    styled,
    thinned,
)
from fkd_bench.compare.survey import axis_value

MOST_POINTS = 60
"""Points of a curve; more are not told apart at this size."""
LOW = 0.45
"""Inches below the axes."""
BELOW_THE_LAST = 10.0
"""Percentage points that are shown below the worst final accuracy; beginnings may lie lower."""


@styled
def accuracy_by_round(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """Accuracy of the global model after each round, mean over seeds; a band of one std for the emphasised label.

    Args:
        records: Finished cells of one setting.
        look: Colours by label.
        title: Above the plot.

    Raises:
        LacksData: No cell was scored after a round.
    """
    curves = _curves(records, look)
    if not curves:
        raise LacksData("Accuracy by round: no cell was scored after its rounds.")
    last = max(points[-1][0].round for points in curves.values())
    figure, ax, height = _beside_names(look, list(curves), title)
    for label, points in curves.items():
        x, y = [float(point.round) for point, _ in points], [point.accuracy for point, _ in points]
        _draw(ax, look, label, x, y)
        spreads = [spread.std or 0.0 for _, spread in points]
        if label == look.emphasised and any(spreads):
            _band(ax, look, label, x, y, spreads)
    ax.set_xlim(0, last)
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.set_xlabel("round")
    _limit_and_name(ax, look, curves, height, [points[-1][0].round for points in curves.values()])
    return figure


@styled
def accuracy_by_bytes(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """As :func:`accuracy_by_round`, by the payload a client has sent and received since the run began.

    Raises:
        LacksData: No cell counted bytes by round.
    """
    curves = {
        label: [pair for pair in points if pair[0].total_bytes > 0]
        for label, points in _curves(records, look).items()
    }
    curves = {label: points for label, points in curves.items() if points}
    if not curves:
        raise LacksData("Accuracy by bytes: no cell counted bytes after its rounds.")
    figure, ax, height = _beside_names(look, list(curves), title)
    for label, points in curves.items():
        _draw(
            ax,
            look,
            label,
            [point.total_bytes / 1e6 for point, _ in points],
            [point.accuracy for point, _ in points],
        )
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0,) if _decades(curves) > 2 else (1.0, 2.0, 5.0)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.minorticks_off()
    ax.set_xlabel("MB up + down per client")
    ends = [points[-1][0].total_bytes / 1e6 for points in curves.values()]
    _limit_and_name(ax, look, curves, height, ends)
    return figure


@styled
def accuracy_by_axis(
    records: Sequence[Record], look: Look, axis: str, name: str = "global", title: str = ""
) -> Figure:
    """A measure over the values of an axis, mean over seeds; bands of one std where few enough labels leave room.

    Args:
        records: Finished cells that differ in this axis, in label and in seed only.
        look: Colours by label.
        axis: Its name; values are numbers, or ``name:number``.
        name: Of the measure.
        title: Above the plot.

    Raises:
        LacksData: The values are no numbers, or fewer than two, or the cells lack the measure.
    """
    shown = measure(name)
    values = {value: value_number(value) for value in {axis_value(record, axis) for record in records}}
    places = {value: place for value, place in values.items() if place is not None}
    if len(places) < max(2, len(values)):
        raise LacksData(f"Accuracy by {axis}: needs two or more values, all of them numbers.")
    lines: dict[str, list[tuple[float, Spread]]] = {}
    for label in look.labels:
        for value, place in sorted(places.items(), key=lambda pair: pair[1]):
            own = [one for one in records if one["label"] == label and axis_value(one, axis) == value]
            spread = Spread.over(map(shown.read, own))
            if spread is not None:
                lines.setdefault(label, []).append((place, spread))
    if not lines:
        raise LacksData(f"Accuracy by {axis}: no cell has {shown.heading.removesuffix(', %')} accuracy.")
    figure, ax, height = _beside_names(look, list(lines), title)
    for label, points in lines.items():
        x, y = [place for place, _ in points], [spread.mean for _, spread in points]
        ax.plot(x, y, marker=look.marker(label), markersize=3, **look.line(label))
        stds = [spread.std or 0.0 for _, spread in points]
        if any(stds) and (label == look.emphasised or len(lines) <= len(PALETTE)):
            _band(ax, look, label, x, y, stds)
    ticks = sorted(places.values())
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 10:
        ax.set_xscale("log")
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel(axis.replace("_", " "))
    ax.set_ylabel(shown.heading)
    ends = {label: (points[-1][0], points[-1][1].mean) for label, points in lines.items()}
    _name_ends(ax, look, ends, height, dagger=name == "global")
    return figure


@styled
def seconds_by_phase(records: Sequence[Record], look: Look, title: str = "") -> Figure:
    """Where the time of a run goes: bars by label, parts by phase, mean over seeds.

    Raises:
        LacksData: No cell measured its phases.
    """
    measured = {
        label: [one["seconds"]["phases"] for one in records if one["label"] == label and _phases(one)]
        for label in look.labels
    }
    measured = {label: cells for label, cells in measured.items() if cells}
    if not measured:
        raise LacksData("Seconds by phase: no cell measured its phases.")
    phases = list(dict.fromkeys(name for cells in measured.values() for cell in cells for name in cell))
    names = [look.name(label) for label in measured]
    columns = 4
    legend = 0.17 * -(-len(phases) // columns) + 0.1
    height = 0.95 + legend + 0.19 * len(measured)
    figure, ax = axes(height, left=room_for(names), right=0.2, title=title, bottom=LOW + legend)
    rows, starts = list(range(len(measured))), [0.0] * len(measured)
    for place, phase in enumerate(phases):
        lengths = [statistics.fmean(cell.get(phase, 0.0) for cell in cells) for cells in measured.values()]
        ax.barh(
            rows,
            lengths,
            left=starts,
            height=0.72,
            label=phase.replace("_", " "),
            color=(*PALETTE, OTHERS)[place % (len(PALETTE) + 1)],
            alpha=1.0 if place <= len(PALETTE) else 0.5,
        )
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    ax.set_yticks(rows, names)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    for text, label in zip(ax.get_yticklabels(), measured, strict=True):
        text.set_fontweight("bold" if label == look.emphasised else "normal")
    ax.set_xlabel("seconds a run, mean over seeds")
    figure.legend(loc="lower center", ncols=columns, handlelength=0.9, columnspacing=1.2)
    return figure


# -- parts ------------------------------------------------------------------------------------------------


def _phases(record: Record) -> bool:
    return bool((record.get("seconds") or {}).get("phases"))


def _curves(records: Sequence[Record], look: Look) -> dict[str, list[tuple[Point, Spread]]]:
    """By label, the mean point of each round, few enough to draw, and the accuracies' spread there."""
    curves = {}
    for label in look.labels:
        at: dict[int, list[Point]] = {}
        for record in records:
            if record["label"] == label:
                for point in curve(record):
                    at.setdefault(point.round, []).append(point)
        means = []
        for round_number, points in sorted(at.items()):
            spread = Spread.over(point.accuracy for point in points)
            carried = statistics.fmean(point.total_bytes for point in points)
            if spread is not None:
                means.append((Point(round_number, spread.mean, carried), spread))
        if means:
            curves[label] = [means[place] for place in thinned(len(means), MOST_POINTS)]
    return curves


def _decades(curves: Mapping[str, Sequence[tuple[Point, Spread]]]) -> float:
    carried = [point.total_bytes for points in curves.values() for point, _ in points]
    return math.log10(max(carried) / min(carried))


def _beside_names(look: Look, labels: Sequence[str], title: str) -> tuple[Figure, Axes, float]:
    """A figure with room for names at the right, its axes and their height in inches."""
    height = max(2.2, 0.125 * len(labels) + 0.3)
    whole = height + LOW + (0.3 if title else 0.12)
    right = room_for([look.name(label, dagger=True) for label in labels])
    figure, ax = axes(whole, left=LEFT, right=right, title=title, bottom=LOW)
    return figure, ax, height


def _draw(ax: Axes, look: Look, label: str, x: Sequence[float], y: Sequence[float]) -> None:
    mark: dict[str, Any] = {"marker": look.marker(label), "markersize": 5.5, "clip_on": False}
    ax.plot(x, y, **look.line(label), **(mark if len(x) == 1 else {}))


def _band(
    ax: Axes, look: Look, label: str, x: Sequence[float], y: Sequence[float], std: Sequence[float]
) -> None:
    low = [value - spread for value, spread in zip(y, std, strict=True)]
    high = [value + spread for value, spread in zip(y, std, strict=True)]
    ax.fill_between(x, low, high, color=look.colour(label), alpha=0.16, linewidth=0)


def _limit_and_name(
    ax: Axes,
    look: Look,
    curves: Mapping[str, Sequence[tuple[Point, Spread]]],
    height: float,
    ends: Sequence[float],
) -> None:
    last = {label: points[-1][1].mean for label, points in curves.items()}
    highest = max(spread.mean for points in curves.values() for _, spread in points)
    lowest = min(spread.mean for points in curves.values() for _, spread in points)
    span = highest - min(last.values()) + BELOW_THE_LAST
    ax.set_ylim(max(lowest - 0.04 * span, min(last.values()) - BELOW_THE_LAST), highest + 0.05 * span)
    ax.set_ylabel("accuracy, %")
    at = {label: (x, y) for x, (label, y) in zip(ends, last.items(), strict=True)}
    _name_ends(ax, look, at, height, dagger=True)


def _name_ends(
    ax: Axes, look: Look, ends: Mapping[str, tuple[float, float]], height: float, *, dagger: bool
) -> None:
    named = [
        (x, y, look.name(label, dagger=dagger), look.colour(label), label == look.emphasised)
        for label, (x, y) in ends.items()
    ]
    name_ends(ax, named, height=height)
