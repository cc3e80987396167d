"""Finished cells by what decides them: one JSON file each, written whole or not at all, shared by all experiments."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.method_source import source_sha256
from fkd_bench.compare.record_shape import record_from
from fkd_common.artifacts import write_atomically

_FAILED = ".failed.json"
_SOURCE = "method_source_sha256"
"""Where a record says what somebody else's method was made of."""


class ResultCache:
    """A folder of records, and of what cells share while they run."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet.

        Args:
            folder: Made when something is kept.
        """
        folder = folder.absolute()
        self._cells = folder / "cells"
        self.workspace = folder / "work"
        """Shards, embeddings and runs."""
        self.logs = folder / "logs"
        """What every cell said, by its id."""

    def finished(self, cell: Cell) -> Record | None:
        """The record of a cell that has finished, as the experiment at hand calls it.

        None if it has not, or if its method is somebody else's and has been edited since.
        """
        record = _read(self._cells / f"{cell.id}.json", cell)
        return None if record is None or self._edited(cell, record) else record

    def outdated(self, cell: Cell) -> bool:
        """Whether a cell had finished before its method was edited."""
        record = _read(self._cells / f"{cell.id}.json", cell)
        return record is not None and self._edited(cell, record)

    @staticmethod
    def _edited(cell: Cell, record: Record) -> bool:
        return str(record.get(_SOURCE, "")) != source_sha256(cell.method)

    def records(self, cells: Iterable[Cell]) -> list[Record]:
        """Records of the cells that have finished or, at last, failed."""
        found = (self.finished(cell) or _read(self._cells / f"{cell.id}{_FAILED}", cell) for cell in cells)
        return [record for record in found if record is not None]

    def keep(self, cell: Cell, record: Record) -> Record:
        """Write a cell's record down; one with an error is there to be reported, and never counts as finished.

        Returns:
            The record as it is read again.
        """
        self._cells.mkdir(parents=True, exist_ok=True)
        plain = _plain({**record, **cell.head()})
        if source := source_sha256(cell.method):
            plain[_SOURCE] = source
        failure = self._cells / f"{cell.id}{_FAILED}"
        path = failure if record.get("error") else self._cells / f"{cell.id}.json"
        write_atomically(path, json.dumps(plain).encode())
        if not record.get("error"):
            failure.unlink(missing_ok=True)
        return dict(plain)

    def all_finished(self) -> Iterator[Record]:
        """Every finished record, of any experiment."""
        for path in sorted(self._cells.glob("*.json")):
            if not path.name.endswith(_FAILED) and (record := _read(path)) is not None:
                yield record


def _read(path: Path, cell: Cell | None = None) -> Record | None:
    """A record; None where there is none, or it is damaged."""
    try:
        record = record_from(path.read_bytes())
    except (OSError, ValueError):
        return None
    return record if cell is None else {**record, **cell.head()}


def _plain(value: Any) -> Any:
    """A value as JSON holds it: no numpy, and null for what is no number."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
