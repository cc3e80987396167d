"""What is said while a grid runs: a bar for a person at a terminal, a JSON object a line for a program."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.durations import Durations, as_time

_SAY_EVERY_S = 30.0
_NAMED = 2
"""Running cells that the bar names."""


class GridWatch:
    """Keeps count; subclasses speak."""

    def __init__(self, workers: int) -> None:
        """Nothing is said yet.

        Args:
            workers: How many cells run at once.
        """
        self.workers = workers
        self.total = self.cached = self.failures = 0
        self.waiting: list[Cell] = []
        self.running: dict[str, tuple[Cell, float]] = {}
        self.durations = Durations()

    @property
    def done(self) -> int:
        """Cells that have ended, now or before."""
        return self.total - len(self.waiting) - len(self.running)

    def left_s(self) -> float | None:
        """Seconds until all is done; None while a method that is to run has never been measured."""
        now, begun = time.monotonic(), 0.0
        for cell, since in self.running.values():
            expected = self.durations.expected(cell)
            if expected is None:
                return None
            begun += max(expected - (now - since), 0.0)
        others = self.durations.all_of(self.waiting, self.workers)
        return None if others is None else others + begun / self.workers

    def begin(self, total: int, to_run: Sequence[Cell], durations: Durations) -> None:
        """A grid begins.

        Args:
            total: Its cells.
            to_run: Those that have not finished before.
            durations: What is known of the time they take.
        """
        self.total, self.cached = total, total - len(to_run)
        self.waiting, self.durations = list(to_run), durations
        self.say_begin()

    def started(self, cell: Cell) -> None:
        """A worker took a cell."""
        self.waiting.remove(cell)
        self.running[cell.id] = (cell, time.monotonic())
        self.say_started(cell)

    def ended(self, cell: Cell, record: Record) -> None:
        """A cell has ended, and is written down."""
        _, since = self.running.pop(cell.id)
        self.durations.note(record)
        self.failures += bool(record.get("error"))
        self.say_ended(cell, record, time.monotonic() - since)

    def tick(self) -> None:
        """Some time passed."""

    def close(self) -> None:
        """The grid has ended, or was stopped."""

    def say(self, sentence: str) -> None:
        """Something a person should know."""

    def say_begin(self) -> None:
        """See :meth:`begin`."""

    def say_started(self, cell: Cell) -> None:
        """See :meth:`started`."""

    def say_ended(self, cell: Cell, record: Record, seconds: float) -> None:
        """See :meth:`ended`."""


class BarWatch(GridWatch):
    """A progress bar, and a line for every cell that failed."""

    def __init__(self, workers: int, console: Console) -> None:
        super().__init__(workers)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._progress = Progress(*columns, console=console, refresh_per_second=2)
        self._task = self._progress.add_task("starting", total=None, left="")

    def say(self, sentence: str) -> None:
        """A line above the bar."""
        self._progress.console.print(escape(sentence), highlight=False, soft_wrap=True)

    def say_begin(self) -> None:
        """How much there is to do."""
        if self.cached:
            self.say(f"{self.cached} of {self.total} cells are finished already")
        self.tick()
        if self.waiting:
            self._progress.start()

    def tick(self) -> None:
        """Show who runs, and how long it will take."""
        names = [str(cell) for cell, _ in self.running.values()]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        shown = "; ".join(names[:_NAMED]) + more
        left = self.left_s()
        self._progress.update(
            self._task,
            total=self.total,
            completed=self.done,
            description=escape(shown) or "starting",
            left=f"about {as_time(left)} left"
            if left is not None
            else "no estimate until each method ran once",
        )

    def say_ended(self, cell: Cell, record: Record, seconds: float) -> None:
        """Failures at once; the bar shows the rest."""
        if error := record.get("error"):
            self._progress.console.print(
                f"[red]failed[/red] {escape(f'{cell}: {error}')}", highlight=False, soft_wrap=True
            )
        self.tick()

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class LineWatch(GridWatch):
    """A JSON object for everything that happens."""

    def __init__(self, workers: int, out: TextIO) -> None:
        super().__init__(workers)
        self._out = out
        self._said = time.monotonic()

    def say(self, sentence: str) -> None:
        """As an event of its own."""
        self._say("note", what=sentence)

    def say_begin(self) -> None:
        """How much there is to do."""
        self._say("grid_started", cells=self.total, cached=self.cached, workers=self.workers)

    def say_started(self, cell: Cell) -> None:
        """Which cell."""
        self._say("cell_started", cell=cell.id, what=str(cell))

    def say_ended(self, cell: Cell, record: Record, seconds: float) -> None:
        """Which cell, and what came of it."""
        about = {"cell": cell.id, "what": str(cell), "run_s": round(seconds, 1)}
        if error := record.get("error"):
            self._say("cell_failed", **about, error=error)
        else:
            self._say("cell_finished", **about, accuracy=record["accuracy"].get("global"))

    def tick(self) -> None:
        """Now and then, what is being waited for."""
        if time.monotonic() - self._said > _SAY_EVERY_S:
            self._say("running", what=[str(cell) for cell, _ in self.running.values()])

    def close(self) -> None:
        """Whether all went well."""
        self._say("grid_ended", failed=self.failures)

    def _say(self, event: str, **values: object) -> None:
        self._said = time.monotonic()
        left = self.left_s()
        counts = {"done": self.done, "of": self.total, "left_s": None if left is None else round(left)}
        print(json.dumps({"event": event, **values, **counts}), file=self._out, flush=True)


def watch_for(workers: int) -> GridWatch:
    """A bar where standard error is a terminal, lines where it is not."""
    console = Console(stderr=True)
    return BarWatch(workers, console) if console.is_terminal else LineWatch(workers, sys.stderr)
