"""An experiment's folder of results: what goes in, and what is published of it."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fkd_bench.compare.cell import Record, as_text
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.measures import number
from fkd_bench.compare.record_shape import record_from
from fkd_bench.compare.source_files import DATA_FOLDER
from fkd_common.artifacts import write_atomically
from fkd_common.csv_text import csv_cell
from fkd_common.errors import DataError, UsageError

CELLS_FILE, EXPERIMENT_FILE, RESULTS_FILE = "cells.csv", "experiment.yaml", "results.jsonl"
TABLE_FILE, REPORT_FILE, _FIGURES = "table.md", "report.html", "figures"
_COPIED = (TABLE_FILE, "table.tex")
LARGEST_REPORT = 1_000_000
"""Bytes; a larger report is not published."""

NUMBERS: Mapping[str, tuple[str, ...]] = {
    "global": ("accuracy", "global"),
    "personal_matched": ("accuracy", "personal_matched"),
    "personal_full": ("accuracy", "personal_full"),
    "up": ("bytes", "up"),
    "down": ("bytes", "down"),
    "seconds": ("seconds", "wall"),
}
"""Columns of cells.csv, and where a record has them."""
BYTE_COUNTS = ("up", "down")
_WHOLE = re.compile(r"\d{1,18}")
_NUMBER = re.compile(r"|\d{1,18}(\.\d{1,25})?([eE][+-]?\d{1,2})?")
"""Empty where there is none."""
_FACTS = (
    "label",
    "dataset",
    "partition",
    "clients",
    "seed",
    "cell",
    "config_hash",
    "partition_hash",
    "model_hash",
)


@dataclass(frozen=True)
class ResultsFolder:
    """Where one experiment's results are."""

    path: Path

    def write_results(self, records: Sequence[Record], content: str) -> None:
        """Write every record and the experiment itself.

        Args:
            records: Finished and failed cells.
            content: The experiment's file.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps(record) + "\n" for record in records)
        write_atomically(self.path / RESULTS_FILE, lines.encode())
        write_atomically(self.path / EXPERIMENT_FILE, content.encode())

    def records(self) -> list[Record]:
        """Every record written here.

        Raises:
            DataError: There are none, or one cannot be read.
        """
        path = self.path / RESULTS_FILE
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            raise DataError(f"no results in {self.path}: run the experiment first") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        return [_record(path, place, line) for place, line in enumerate(lines, start=1) if line.strip()]

    def publish(self, records: Sequence[Record], target: Path) -> None:
        """Copy what is small and lasts: tables, figures, the report, the experiment and a row per cell.

        Args:
            records: All of them.
            target: Folder of this experiment among published results; what an earlier call put there is replaced.

        Raises:
            UsageError: No cell has finished.
        """
        finished = [record for record in records if not record.get("error")]
        if not finished:
            raise UsageError("no cell has finished, so there is nothing to publish")
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".publishing-") as staging:
            new = Path(staging)
            for name in (*_COPIED, EXPERIMENT_FILE):
                shutil.copyfile(self.path / name, new / name)
            shutil.copytree(self.path / _FIGURES, new / _FIGURES)
            if (self.path / REPORT_FILE).stat().st_size < LARGEST_REPORT:
                shutil.copyfile(self.path / REPORT_FILE, new / REPORT_FILE)
            (new / CELLS_FILE).write_text(cells_csv(finished))
            (target / REPORT_FILE).unlink(missing_ok=True)
            shutil.rmtree(target / _FIGURES, ignore_errors=True)
            for made in list(new.iterdir()):
                made.replace(target / made.name)


def _record(path: Path, place: int, line: str) -> Record:
    try:
        return record_from(line)
    except ValueError as error:
        raise DataError(
            f"{path}, line {place}, is no record ({error}): the same command without --report-only writes it anew"
        ) from error


def check_publishable(experiment: Experiment) -> None:
    """See that an experiment says nothing of this machine, and can be repeated on another.

    Raises:
        UsageError: Data or an extractor lie at an absolute path.
    """
    for name, spec in experiment.data.items():
        for key, text in (("source", spec.source.rpartition(":")[2]), ("extractor", spec.extractor)):
            if text.startswith(("/", "~")):
                raise UsageError(
                    f"experiment {experiment.where}: data.{name}.{key} = {text} is a place of this machine: to "
                    f"publish, write ${{{DATA_FOLDER}}}/{Path(text).name} and give --data-folder {Path(text).parent}"
                )


def cells_csv(records: Sequence[Record]) -> str:
    """A row for each cell: what it is, its hashes, its accuracies and bytes, as exact as they were computed."""
    axes = dict.fromkeys(axis for record in records for axis in record["varied"] if axis not in _FACTS)
    shown = [axis for axis in axes if axis != "data"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FACTS[:4], *shown, *_FACTS[4:], *NUMBERS])
    for record in records:
        facts = {name: record.get(name) for name in _FACTS} | {
            axis: as_text(record["varied"].get(axis, "")) for axis in shown
        }
        row = [csv_cell(facts[name]) for name in (*_FACTS[:4], *shown, *_FACTS[4:])]
        writer.writerow([*row, *(_exact(name, number(record, *path)) for name, path in NUMBERS.items())])
    return text.getvalue()


def read_cells_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a published cells.csv.

    Raises:
        DataError: There is none, or it lacks a column.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} cannot be read: give a folder that `compare --publish` wrote ({error})"
        ) from error
    missing = [name for name in (*_FACTS, *NUMBERS) if rows and name not in rows[0]]
    if missing or not rows:
        raise DataError(
            f"{path} has no {', '.join(missing) or 'rows'}: give a folder that `compare --publish` wrote"
        )
    for place, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise DataError(f"{path}, row {place}, has more or fewer values than there are columns")
        for name in ("seed", "clients", *NUMBERS):
            if not (_WHOLE if name in ("seed", "clients") else _NUMBER).fullmatch(row[name]):
                raise DataError(f"{path}, row {place}: {name} = {row[name]!r} is no number")
    return rows


def _exact(name: str, value: float | None) -> Any:
    if value is None:
        return ""
    return int(value) if name in BYTE_COUNTS else repr(value)
