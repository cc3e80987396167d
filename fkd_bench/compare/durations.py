"""How long cells will take, from cells that were measured; guesses nothing where nothing was."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from fkd_bench.compare.cell import Cell, Record

_STEPS_IN_AN_EPOCH = 50
"""Where only epochs are given, and how many samples clients have is not known yet."""


class Durations:
    """Seconds per mini-batch of the cells measured so far."""

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self._rates: dict[tuple[str, str], list[float]] = {}
        for record in records:
            self.note(record)

    def note(self, record: Record) -> None:
        """A cell has finished."""
        seconds = (record.get("seconds") or {}).get("wall")
        if record.get("error") or not seconds:
            return
        with suppress(KeyError, TypeError):  # a record that others wrote
            rate = seconds / _work(record["config"], record["clients"])
            self._rates.setdefault((record["method"], record["dataset"]), []).append(rate)

    def expected(self, cell: Cell) -> float | None:
        """Seconds a cell will take by those of its method on its data set, scaled by mini-batches; None without one."""
        rates = self._rates.get((cell.method, cell.dataset))
        if rates is None:
            return None
        return statistics.median(rates) * _work(cell.config.model_dump(mode="json"), cell.division.clients)

    def all_of(self, cells: Iterable[Cell], workers: int) -> float | None:
        """Seconds until all of them have run; None while one of their methods has not been measured."""
        expected = [self.expected(cell) for cell in cells]
        known = [seconds for seconds in expected if seconds is not None]
        return sum(known) / workers if len(known) == len(expected) else None


def _work(config: Mapping[str, Any], clients: int) -> float:
    """Mini-batches of a whole run."""
    steps = config["local_steps"] or _STEPS_IN_AN_EPOCH * config["local_epochs"]
    return float(config["rounds"] * max(1, round(clients * config["clients_per_round"])) * steps)


def as_time(seconds: float) -> str:
    """`40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
