"""Which cell a free worker runs next, so that what cells share is made once; runs nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from fkd_bench.compare.cell import Cell

_Worker = TypeVar("_Worker")


class Schedule(Generic[_Worker]):
    """Cells by division of the data.

    The first cell of a division runs alone: it makes the shards and embeddings that the others find. A worker stays
    with its division, whose teachers it has in memory, and helps with another when its own is used up.
    """

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._left: dict[str, deque[Cell]] = {}
        for cell in cells:
            self._left.setdefault(cell.division.id, deque()).append(cell)
        self._untouched = deque(self._left)
        self._opening: set[str] = set()
        self._place: dict[_Worker, str] = {}

    def take(self, worker: _Worker) -> Cell | None:
        """The next cell for a worker; None if there is none for now."""
        division = self._choose(worker)
        if division is None:
            return None
        self._place[worker] = division
        return self._left[division].popleft()

    def done(self, cell: Cell) -> None:
        """A cell has ended, well or not."""
        self._opening.discard(cell.division.id)

    def _choose(self, worker: _Worker) -> str | None:
        ready = [name for name, cells in self._left.items() if cells and name not in self._opening]
        own = self._place.get(worker)
        if own in ready:
            return own
        if self._untouched:
            name = self._untouched.popleft()
            self._opening.add(name)
            return name
        touched = [name for name in ready if name not in self._untouched]
        return max(touched, key=lambda name: len(self._left[name]), default=None)
