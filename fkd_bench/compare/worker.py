"""What a worker does with a cell: run it, and turn whatever goes wrong into its record; starts no process."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Protocol, TypeAlias

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.disk_space import full_disk_said
from fkd_bench.compare.schedule import Schedule
from fkd_common.errors import FkdError

RunCell: TypeAlias = Callable[[Cell, Path], Record]
"""Runs a cell in a folder that cells share, and returns its record."""


class Watch(Protocol):
    """Told what a grid does."""

    def started(self, cell: Cell) -> None:
        """A worker took a cell."""
        ...

    def tick(self) -> None:
        """Some time passed."""
        ...


class Workers(Protocol):
    """Where cells run."""

    @property
    def count(self) -> int:
        """How many run at once."""
        ...

    def run(self, schedule: Schedule[int], watch: Watch) -> Iterator[tuple[Cell, Record]]:
        """Run all cells of a schedule; yields each when it has ended, well or not."""
        ...


def record_of(run_cell: str, cell: Cell, workspace: Path) -> Record:
    """A cell's record, whatever happens; what nobody foresaw is printed as a traceback.

    Args:
        run_cell: A :data:`RunCell`, as ``module:function``.
        cell: What to run.
        workspace: The folder that cells share.
    """
    module, _, name = run_cell.partition(":")
    try:
        run: RunCell = getattr(import_module(module), name)
        with full_disk_said(workspace):
            return {**run(cell, workspace), "error": None}
    except FkdError as error:
        return cell.failed(" ".join(str(error).split()))
    except Exception as error:
        traceback.print_exc()
        said = " ".join(str(error).split())
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"({Path(last.filename).name}:{last.lineno})"
        return cell.failed(f"{type(error).__name__}: {said} {place}".replace(":  (", " ("))
