"""Finished cells arranged as an experiment's grid: which rows, columns and tables there are, and what is missing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, TypeVar

from fkd_bench.compare.measures import BOUNDS, FKD_RTM, Record, value_number, value_text
from fkd_common.printable import printable

Setting = tuple[tuple[str, str], ...]
"""Axes and their values."""

LONGEST_ERROR = 240
_PATH = re.compile(r"(?<![\w./])/(?:[^\s/]+/)*([^\s/]+)")
"""Absolute; addresses, whose slashes are two, are none."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Panel:
    """The cells of all methods in one setting."""

    setting: Setting
    """Values of all axes but the column axis."""
    column: str
    """Value of the column axis, empty where there is none."""
    title: str
    by_label: Mapping[str, tuple[Record, ...]]
    """Cells without an error, in the order of seeds; a label may have none."""

    @property
    def records(self) -> list[Record]:
        """All of them, label by label."""
        return [record for records in self.by_label.values() for record in records]


@dataclass(frozen=True)
class Survey:
    """An experiment's cells by label, setting and column."""

    labels: tuple[str, ...]
    column_axis: str
    panels: tuple[Panel, ...]
    """Column by column within each setting."""
    seeds: tuple[int, ...]
    failed: tuple[Record, ...]
    methods: Mapping[str, str]
    """Method by label."""
    varying: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values of each axis, as text."""
    stub: str = "method"
    """What labels are."""

    @classmethod
    def of(cls, records: Iterable[Record], experiment: Mapping[str, Any]) -> Survey:
        """Arrange cells.

        Args:
            records: Finished cells; of several with one id, the one without an error counts, else the last.
            experiment: ``columns`` names the axis whose values are columns. ``labels``, ``axes`` (a list of values
                by name) and ``seeds`` are optional: where given they decide what is expected, and in which order;
                else it is what the records hold, numbers in ascending order.
        """
        kept = _latest(records)
        labels = _unique([*experiment.get("labels", ()), *(record["label"] for record in kept)])
        columns = str(experiment.get("columns") or "")
        given: Mapping[str, Sequence[Any]] = experiment.get("axes") or {}
        names = _unique([*given, *(name for record in kept for name in record.get("varied") or {}), columns])
        varying = {name: _values(kept, name, given.get(name, ())) for name in names if name}
        others = [name for name in varying if name != columns]
        settings: list[Setting]
        if given:
            settings = [
                tuple(zip(others, values, strict=True))
                for values in product(*(varying[name] for name in others))
            ]
        else:
            found = _unique(tuple((name, axis_value(record, name)) for name in others) for record in kept)
            settings = sorted(found, key=lambda one: [varying[name].index(value) for name, value in one])
        panels = tuple(
            _panel(kept, labels, setting, columns, column)
            for setting in settings
            for column in (varying[columns] if columns else ("",))
        )
        seeds = _unique([*experiment.get("seeds", ()), *sorted({record["seed"] for record in kept})])
        return cls(
            labels=tuple(labels),
            column_axis=columns,
            panels=panels,
            seeds=tuple(seeds),
            failed=tuple(record for record in kept if record.get("error")),
            methods={record["label"]: record.get("method", "") for record in kept},
            varying=varying,
        )

    def with_columns_as_rows(self) -> Survey:
        """With a single label its columns become the rows: an ablation's values belong under each other."""
        axis = self.column_axis
        if len(self.labels) != 1 or not axis or len(self.varying[axis]) < 2:
            return self
        cells = (*(record for panel in self.panels for record in panel.records), *self.failed)
        rows = [
            {
                **record,
                "label": f"{axis} {axis_value(record, axis)}",
                "varied": {name: value for name, value in record["varied"].items() if name != axis},
            }
            for record in cells
        ]
        return replace(
            Survey.of(
                rows,
                {
                    "labels": [f"{axis} {value}" for value in self.varying[axis]],
                    "axes": {name: values for name, values in self.varying.items() if name != axis},
                    "seeds": self.seeds,
                },
            ),
            stub=axis,
        )

    @property
    def settings(self) -> list[Setting]:
        """One per table."""
        return _unique(panel.setting for panel in self.panels)

    def columns(self, setting: Setting) -> list[Panel]:
        """The panels of one table, left to right."""
        return [panel for panel in self.panels if panel.setting == setting]

    @property
    def emphasised(self) -> str | None:
        """The label of FKD-RTM as it is by default, if it is there beside others."""
        own = [label for label in self.labels if self.methods.get(label) == FKD_RTM]
        named = [label for label in own if label.lower() == FKD_RTM]
        if named:
            return named[0]
        return own[0] if own and len(own) < len(self.labels) else None

    def is_baseline(self, label: str) -> bool:
        """Whether a label is another method's, and no bound."""
        return self.methods.get(label) not in {FKD_RTM, *BOUNDS}

    def gap(self, panel: Panel, label: str) -> str:
        """What is missing of a row in a column and why, as a phrase; empty where nothing is."""
        wrong = [f"seed {seed} failed: {sentence}" for seed, sentence in self._failures(panel, label).items()]
        absent = self.absent(panel, label)
        return "; ".join([*wrong, absent] if absent else wrong)

    def absent(self, panel: Panel, label: str) -> str:
        """Which seeds of a row in a column have not been run, as a phrase; empty where all have."""
        there = {record["seed"] for record in panel.by_label.get(label, ())}
        seeds = [seed for seed in self.seeds if seed not in there | self._failures(panel, label).keys()]
        return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))} not run" if seeds else ""

    def _failures(self, panel: Panel, label: str) -> dict[int, str]:
        return {
            record["seed"]: error_text(record)
            for record in self.failed
            if record["label"] == label and _belongs(record, panel.setting, self.column_axis, panel.column)
        }


def axis_value(record: Record, axis: str) -> str:
    """A cell's value on an axis, as text."""
    varied = record.get("varied") or {}
    if axis in varied:
        return value_text(varied[axis])
    return value_text(record.get("dataset" if axis == "data" else axis))


def error_text(record: Record) -> str:
    """Why a cell failed, in one line that may be published: of paths on this machine only their last part is left."""
    return printable(_PATH.sub(r"…/\1", str(record["error"])), LONGEST_ERROR)


def setting_text(setting: Setting) -> str:
    """``eps 1e-06, clients 20``; empty where nothing varies."""
    return ", ".join(f"{name} {value}" for name, value in setting)


def _panel(
    records: Sequence[Record], labels: Sequence[str], setting: Setting, axis: str, column: str
) -> Panel:
    title = setting_text((*setting, (axis, column)) if axis else setting)
    found = [
        record for record in records if not record.get("error") and _belongs(record, setting, axis, column)
    ]
    found.sort(key=lambda record: record["seed"])
    by_label = {label: tuple(record for record in found if record["label"] == label) for label in labels}
    return Panel(setting, column, title, by_label)


def _belongs(record: Record, setting: Setting, axis: str, column: str) -> bool:
    placed = (*setting, (axis, column)) if axis else setting
    return all(axis_value(record, name) == value for name, value in placed)


def _latest(records: Iterable[Record]) -> list[Record]:
    """One record of each cell; rows that compute the same have the same id and are kept apart."""
    kept: dict[str, Record] = {}
    for record in records:
        key = json.dumps([record["cell"], record["label"], record.get("varied")], sort_keys=True)
        before = kept.get(key)
        if before is None or before.get("error") or not record.get("error"):
            kept[key] = record
    return list(kept.values())


def _values(records: Sequence[Record], axis: str, given: Sequence[Any]) -> tuple[str, ...]:
    expected = [value_text(value) for value in given]
    found = _unique(axis_value(record, axis) for record in records)
    places = {value: value_number(value) for value in found}
    if all(place is not None for place in places.values()):
        found.sort(key=lambda value: (value.rpartition(":")[0], places[value]))
    return tuple(_unique([*expected, *found]))


def _unique(values: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(values))
