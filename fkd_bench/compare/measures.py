"""What one finished cell says: its measures by name, its curve, mean and spread over seeds; no layout."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]
"""A finished cell, one line of results.jsonl."""

FKD_RTM = "fkd-rtm"
CENTRAL = "central"
"""The bound: the same head on pooled data, which no federated method may see."""
LOCAL = "local"
"""The other bound: every client alone."""
BOUNDS = frozenset({CENTRAL, LOCAL})


@dataclass(frozen=True)
class Spread:
    """Values of several seeds."""

    mean: float
    std: float | None
    """Standard deviation, ddof = 1; None for a single value."""
    count: int

    @classmethod
    def over(cls, values: Iterable[float | None]) -> Spread | None:
        """Mean and standard deviation of the values that are there; None where none is."""
        known = [value for value in values if value is not None]
        if not known:
            return None
        return cls(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


@dataclass(frozen=True)
class Measure:
    """A number that tables may show."""

    heading: str
    read: Callable[[Record], float | None]
    """From a finished cell, in the unit shown."""
    better: int = 1
    """1 where more is better, -1 where less is, 0 where a best one means nothing."""
    decimals: int = 2

    def shown(self, spread: Spread) -> str:
        """``mean (std)``, or the mean alone."""
        text = f"{spread.mean:,.{self.decimals}f}"
        return text if spread.std is None else f"{text} ({spread.std:,.{self.decimals}f})"


def measure(name: str) -> Measure:
    """The measure of this name: one of :data:`MEASURES`, or any other name among a cell's accuracies."""
    return MEASURES.get(name) or _accuracy(name, name.replace("_", " "))


def number(record: Record, *path: str) -> float | None:
    """A finite number somewhere in a cell, None where it or anything on the way is missing."""
    value: Any = record
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def lacks_global_model(record: Record) -> bool:
    """Whether the cell's method has models of clients only, so that their mean stands in for a global model."""
    return (
        number(record, "accuracy", "global") is None
        and number(record, "accuracy", "personal_full") is not None
    )


def _global(record: Record) -> float | None:
    name = "personal_full" if lacks_global_model(record) else "global"
    return _hundredfold(number(record, "accuracy", name))


def _hundredfold(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _accuracy(name: str, heading: str) -> Measure:
    return Measure(heading, lambda record: _hundredfold(number(record, "accuracy", name)))


def _percent(heading: str, *path: str) -> Measure:
    return Measure(heading, lambda record: _hundredfold(number(record, *path)), better=-1)


def megabytes(count: float | None) -> float | None:
    """10^6 bytes."""
    return None if count is None else count / 1e6


def total_bytes(record: Record) -> float | None:
    """Payload up and down per client over the run."""
    up, down = number(record, "bytes", "up"), number(record, "bytes", "down")
    return None if up is None or down is None else up + down


MEASURES = {
    "global": Measure("global, %", _global),
    "personal_matched": _accuracy("personal_matched", "personal, %"),
    "personal_matched_worst": _accuracy("personal_matched_worst", "worst client, %"),
    "personal_full": _accuracy("personal_full", "personal on all classes, %"),
    "student": _accuracy("student", "averaged student, %"),
    "anchors": _accuracy("anchors", "with anchors, %"),
    "moments": _accuracy("moments", "with moments, %"),
    "ensemble": _accuracy("ensemble", "ensemble, %"),
    "local_only": _accuracy("local_only", "local teacher, %"),
    "local_only_matched": _accuracy("local_only_matched", "local teacher, personal, %"),
    "up": Measure("up, MB", lambda record: megabytes(number(record, "bytes", "up")), better=0),
    "down": Measure("down, MB", lambda record: megabytes(number(record, "bytes", "down")), better=0),
    "total": Measure("up + down, MB", lambda record: megabytes(total_bytes(record)), better=0),
    "seconds": Measure(
        "wall time, s", lambda record: number(record, "seconds", "wall"), better=0, decimals=1
    ),
    "cpu": Measure("CPU time, s", lambda record: number(record, "seconds", "cpu"), better=0, decimals=1),
    "ece": _percent("ECE, %", "calibration", "ece"),
    "nll": Measure("NLL", lambda record: number(record, "calibration", "nll"), better=-1, decimals=3),
    "teacher_ece_before": _percent("teacher ECE, raw, %", "teacher", "ece_before"),
    "teacher_ece_after": _percent("teacher ECE, calibrated, %", "teacher", "ece_after"),
    "teacher_nll_before": Measure(
        "teacher NLL, raw", lambda record: number(record, "teacher", "nll_before"), better=-1, decimals=3
    ),
    "teacher_nll_after": Measure(
        "teacher NLL, calibrated",
        lambda record: number(record, "teacher", "nll_after"),
        better=-1,
        decimals=3,
    ),
}


@dataclass(frozen=True)
class Point:
    """A cell after one of its rounds."""

    round: int
    accuracy: float
    """In percent."""
    total_bytes: float
    """Payload up and down per client since the run began."""


def curve(record: Record) -> list[Point]:
    """The rounds after which the cell was scored; the last one with its final accuracy, if nothing else is known.

    What counts is the model that a site would use: of a method that publishes one after some rounds, the last one
    published, and nothing before the first. Without a global model it is the mean of the clients' models on the whole
    test set.
    """
    rounds: Sequence[Record] = record.get("rounds") or ()
    clients_only = lacks_global_model(record)
    publishes = any(number(entry, "accuracies", "published") is not None for entry in rounds)
    points: list[Point] = []
    for entry in rounds:
        if publishes:
            score = number(entry, "accuracies", "published")
            if score is None and points:
                score = points[-1].accuracy / 100
        elif clients_only:
            score = number(entry, "accuracies", "personal_full")
        else:
            score = number(entry, "accuracy")
        if score is None and entry is rounds[-1]:
            score = number(record, "accuracy", "personal_full" if clients_only else "global")
        if score is not None:
            carried = (number(entry, "up") or 0.0) + (number(entry, "down") or 0.0)
            points.append(Point(int(entry["round"]), 100 * score, carried))
    return points


def value_text(value: Any) -> str:
    """A value of an axis or of the configuration as text."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return " + ".join(value_text(part) for part in value) or "none"
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return str(value)


def value_number(text: str) -> float | None:
    """A value as a place on a numeric axis: ``40``, ``1e-06``, or what follows the colon of ``dirichlet:0.1``."""
    try:
        return float(text.rpartition(":")[2])
    except ValueError:
        return None
