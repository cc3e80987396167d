"""Cells to tables: means over seeds with what is best and what is as good, and what each exchange cost; no markup."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fkd_bench.compare.measures import (
    CENTRAL,
    Measure,
    Record,
    Spread,
    curve,
    lacks_global_model,
    measure,
    megabytes,
    number,
    total_bytes,
)
from fkd_bench.compare.survey import Panel, Setting, Survey, setting_text

DAGGER, DOUBLE_DAGGER = "†", "‡"
ABSENT, NEVER = "–", "never"
TARGETS = (0.95, 0.99)
"""Shares of the best baseline's accuracy whose price is asked for."""

_CLIENTS_ONLY = (
    "no global model: mean of the clients' models on the whole test set, not compared with global ones"
)
_BOUND = "a bound: trained on the pooled data, which no federated method sees; not compared"


@dataclass(frozen=True)
class Entry:
    """One place of a table."""

    text: str
    best: bool = False
    close: bool = False
    """Not told apart from the best one by its spread."""
    marks: str = ""
    """Signs of notes, separated by commas."""


@dataclass(frozen=True)
class Row:
    """A method's line."""

    label: str
    entries: tuple[Entry, ...]
    emphasised: bool = False


@dataclass(frozen=True)
class Table:
    """What any markup needs to know."""

    caption: str
    stub: str
    """Heading of the first column."""
    groups: tuple[tuple[str, int], ...]
    """Headings above the columns, and how many each spans; empty for none."""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[tuple[str, str], ...]
    """Sign, empty for a remark on the whole table, and text."""


class _Notes:
    """Signs for notes, the same one for the same text."""

    def __init__(self) -> None:
        self._letters: dict[str, str] = {}
        self._signs: dict[str, str] = {}

    def letter(self, text: str) -> str:
        return self._letters.setdefault(text, _letters(len(self._letters)))

    def sign(self, sign: str, text: str) -> str:
        self._signs[sign] = text
        return sign

    def all(self) -> list[tuple[str, str]]:
        return [*self._signs.items(), *((letter, text) for text, letter in self._letters.items())]


def _letters(number: int) -> str:
    more, last = divmod(number, 26)
    return (_letters(more - 1) if more else "") + chr(ord("a") + last)


# -- which one is best --------------------------------------------------------------------------------


def standing(spreads: Mapping[str, Spread], measure: Measure) -> tuple[set[str], set[str]]:
    """Who is best, and who cannot be told apart from the best.

    Args:
        spreads: By label; those that may be compared. Of fewer than two none is best.
        measure: Says whether more or less is better, and to how many decimals values are equal.

    Returns:
        Labels that show the best mean, and others within one pooled standard deviation of it: with the best one's
        s_1, n_1 and theirs s_2, n_2 that is sqrt(((n_1 - 1) s_1^2 + (n_2 - 1) s_2^2) / (n_1 + n_2 - 2)).
    """
    if len(spreads) < 2 or not measure.better:
        return set(), set()
    top = max(spreads, key=lambda label: measure.better * spreads[label].mean)
    shown = f"{spreads[top].mean:.{measure.decimals}f}"
    best = {label for label, one in spreads.items() if f"{one.mean:.{measure.decimals}f}" == shown}
    close = {
        label
        for label, one in spreads.items()
        if label not in best and abs(one.mean - spreads[top].mean) <= pooled_std(one, spreads[top])
    }
    return best, close


def pooled_std(one: Spread, other: Spread) -> float:
    """Pooled standard deviation of two means; -1 where neither has a spread, so that nothing is within it."""
    freedom = one.count + other.count - 2
    if freedom < 1:
        return -1.0
    squares = sum((each.count - 1) * (each.std or 0.0) ** 2 for each in (one, other))
    return math.sqrt(squares / freedom)


def spreads(panel: Panel, name: str) -> dict[str, Spread]:
    """Mean and spread of a measure by label, in the rows' order; labels without one are left out."""
    read = measure(name).read
    over = {label: Spread.over(map(read, records)) for label, records in panel.by_label.items()}
    return {label: spread for label, spread in over.items() if spread is not None}


def comparable(survey: Survey, panel: Panel, name: str) -> dict[str, Spread]:
    """As :func:`spreads`, without the pooled bound and, for "global", without methods that have no global model."""
    return {
        label: spread
        for label, spread in spreads(panel, name).items()
        if survey.methods.get(label) != CENTRAL
        and not (name == "global" and any(map(lacks_global_model, panel.by_label[label])))
    }


# -- tables of measures -------------------------------------------------------------------------------


def measure_table(
    survey: Survey, setting: Setting, names: Sequence[str], subject: str, *, all_rows: bool = True
) -> Table | None:
    """Labels by columns and measures; measures that no cell has are left out, and without any there is no table.

    Args:
        survey: The cells.
        setting: Which of its tables.
        names: Of measures, as :func:`fkd_bench.compare.measures.measure` knows them.
        subject: What the caption says it is about.
        all_rows: Whether labels without any of the measures have a row.
    """
    panels = survey.columns(setting)
    names = [name for name in names if any(spreads(panel, name) for panel in panels)]
    if not names:
        return None
    labels = [
        label
        for label in survey.labels
        if all_rows or any(label in spreads(panel, name) for panel in panels for name in names)
    ]
    notes = _Notes()
    columns = [_column(survey, labels, panel, name, notes) for panel in panels for name in names]
    rows = tuple(
        Row(label, tuple(column[label] for column in columns), label == survey.emphasised) for label in labels
    )
    entries = [entry for row in rows for entry in row.entries]
    remarks = [("", _spread_remark(survey))]
    if any(entry.best for entry in entries):
        remarks.append(("", "bold: best of its column"))
    if any(entry.close for entry in entries):
        remarks.append(("", "underlined: within one pooled standard deviation of the best"))
    if any(entry.text == ABSENT and not entry.marks for entry in entries):
        remarks.append(("", f"{ABSENT}: the method has no such figure"))
    groups = tuple((f"{survey.column_axis} {panel.column}", len(names)) for panel in panels)
    where = setting_text(setting)
    return Table(
        caption=f"{subject}: {where}" if where else subject,
        stub=survey.stub,
        groups=groups if survey.column_axis else (),
        columns=tuple(measure(name).heading for _ in panels for name in names),
        rows=rows,
        notes=(*remarks, *notes.all()),
    )


def _spread_remark(survey: Survey) -> str:
    if len(survey.seeds) < 2:
        return "one seed: no spread is known, and nothing can be told apart by it"
    return f"mean (standard deviation, ddof = 1) over {len(survey.seeds)} seeds"


def _column(
    survey: Survey, labels: Sequence[str], panel: Panel, name: str, notes: _Notes
) -> dict[str, Entry]:
    shown, means = measure(name), spreads(panel, name)
    best, close = standing(comparable(survey, panel, name), shown)
    entries = {}
    for label in labels:
        marks = []
        if name == "global" and any(map(lacks_global_model, panel.by_label[label])):
            marks.append(notes.sign(DAGGER, _CLIENTS_ONLY))
        if survey.methods.get(label) == CENTRAL and label in means and shown.better:
            marks.append(notes.sign(DOUBLE_DAGGER, _BOUND))
        gap = survey.gap(panel, label)
        if gap:
            marks.append(notes.letter(gap))
        text = shown.shown(means[label]) if label in means else ABSENT
        entries[label] = Entry(text, label in best, label in close, ",".join(marks))
    return entries


# -- what it cost to get there ------------------------------------------------------------------------


def traffic_table(survey: Survey, panel: Panel) -> Table | None:
    """Bytes per client over the run, and rounds and bytes until shares of the best baseline were reached."""
    if not any(total_bytes(record) is not None for record in panel.records):
        return None
    notes = _Notes()
    goal = target(survey, panel)
    shares = TARGETS if goal else ()
    rows = []
    for label in survey.labels:
        records = panel.by_label[label]
        entries = [_megabytes(records, "up"), _megabytes(records, "down"), _total(records)]
        for share in shares:
            entries += _price(records, share * goal[1] if goal else math.inf, notes)
        gap = survey.gap(panel, label)
        if gap:
            first = entries[0]
            entries[0] = Entry(first.text, marks=notes.letter(gap))
        rows.append(Row(label, tuple(entries), label == survey.emphasised))
    remarks = [
        ("", "payload per client over the run, mean over clients and seeds; an MB is a million bytes"),
    ]
    if goal:
        parts = " and ".join(f"{_percent(share)} = {share * goal[1]:.2f} %" for share in shares)
        remarks.append(
            ("", f"targets are shares of {goal[0]}, the best {goal[2]} ({goal[1]:.2f} %): {parts}")
        )
        remarks.append(("", "rounds and MB up + down until a round's accuracy first was at the target, mean"))
    groups = [("per client, MB", 3)] + [(f"to {_percent(share)} of the best", 2) for share in shares]
    return Table(
        caption=f"Traffic: {panel.title}" if panel.title else "Traffic",
        stub=survey.stub,
        groups=tuple(groups),
        columns=("up", "down", "total", *("rounds", "MB") * len(shares)),
        rows=tuple(rows),
        notes=(*remarks, *notes.all()),
    )


def target(survey: Survey, panel: Panel) -> tuple[str, float, str] | None:
    """The best baseline with a global model, its mean accuracy in percent and what it is among.

    Where there is no baseline, as in an ablation, it is the best row.
    """
    means = comparable(survey, panel, "global")
    baselines = {label: spread for label, spread in means.items() if survey.is_baseline(label)}
    among = baselines or means
    if not among:
        return None
    best = max(among, key=lambda label: among[label].mean)
    return best, among[best].mean, "baseline" if baselines else "row"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _megabytes(records: Sequence[Record], way: str) -> Entry:
    return _mean_megabytes(records, lambda record: number(record, "bytes", way))


def _total(records: Sequence[Record]) -> Entry:
    return _mean_megabytes(records, total_bytes)


def _mean_megabytes(records: Sequence[Record], read: Callable[[Record], float | None]) -> Entry:
    spread = Spread.over(megabytes(read(record)) for record in records)
    return Entry(ABSENT if spread is None else f"{spread.mean:,.2f}")


def _price(records: Sequence[Record], goal: float, notes: _Notes) -> list[Entry]:
    curves = [points for points in map(curve, records) if points]
    if not curves:
        return [Entry(ABSENT), Entry(ABSENT)]
    firsts = [next((point for point in points if point.accuracy >= goal), None) for points in curves]
    reached = [point for point in firsts if point is not None]
    marks = []
    if any(map(lacks_global_model, records)):
        marks.append(notes.sign(DAGGER, _CLIENTS_ONLY))
    if not reached:
        return [Entry(NEVER, marks=",".join(marks)), Entry(NEVER)]
    if len(reached) < len(curves):
        marks.append(notes.letter(f"reached with {len(reached)} of {len(curves)} seeds, mean over these"))
    rounds = statistics.fmean(point.round for point in reached)
    carried = statistics.fmean(point.total_bytes for point in reached) / 1e6
    return [Entry(f"{rounds:.0f}", marks=",".join(marks)), Entry(f"{carried:,.2f}")]
