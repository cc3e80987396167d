"""Workers as processes of this machine: started once, one thread each, gone with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.schedule import Schedule
from fkd_bench.compare.worker import Watch, record_of

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""For workers: several cells at once share the cores as processes."""

_TICK_S = 1.0
_STOP_S = 2.0


class ProcessPool:
    """Workers that import their packages once and run cell after cell."""

    def __init__(self, run_cell: str, workspace: Path, logs: Path, workers: int) -> None:
        """Nothing is started yet.

        Args:
            run_cell: What they do, as ``module:function``: imported by them alone.
            workspace: What cells share.
            logs: Folder for what every cell says, a file each.
            workers: How many.
        """
        self._given = (run_cell, workspace, logs)
        self.count = workers

    def run(self, schedule: Schedule[int], watch: Watch) -> Iterator[tuple[Cell, Record]]:
        """See :class:`fkd_bench.compare.worker.Workers`."""
        workers = {number: _Worker(*self._given) for number in range(self.count)}
        try:
            while True:
                for number, worker in workers.items():
                    if worker.cell is None and (cell := schedule.take(number)) is not None:
                        worker.give(cell)
                        watch.started(cell)
                busy = [number for number, worker in workers.items() if worker.cell is not None]
                if not busy:
                    return
                ended = wait([workers[number].connection for number in busy], _TICK_S)
                watch.tick()
                for number in busy:
                    if workers[number].connection in ended:
                        cell, record = workers[number].result()
                        if not workers[number].alive:
                            workers[number] = _Worker(*self._given)
                        schedule.done(cell)
                        yield cell, record
        finally:
            _stop(list(workers.values()))


class _Worker:
    """One process, as those who started it see it."""

    def __init__(self, run_cell: str, workspace: Path, logs: Path) -> None:
        self.cell: Cell | None = None
        self.alive = True
        self._logs = logs
        self.connection, theirs = multiprocessing.Pipe()
        self.process: SpawnProcess = multiprocessing.get_context("spawn").Process(
            target=_serve, args=(theirs, run_cell, workspace, logs), daemon=True
        )
        with _environment(ONE_THREAD):
            self.process.start()
        theirs.close()

    def give(self, cell: Cell) -> None:
        """Let it run a cell."""
        self.cell = cell
        with suppress(OSError):  # it is gone: then there is no result either
            self.connection.send(cell)

    def result(self) -> tuple[Cell, Record]:
        """What became of the cell."""
        cell, self.cell = self.cell, None
        assert cell is not None
        try:
            record: Record = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self.process.join(_STOP_S)
            log = f"{self._logs.name}/{cell.id}.log"
            record = cell.failed(
                f"its process ended with {_ending(self.process.exitcode)}, see {log} in the cache"
            )
        return cell, record

    def stop(self) -> None:
        """End it, and what it started."""
        if self.process.is_alive():
            assert self.process.pid is not None
            with suppress(ProcessLookupError, PermissionError):  # it has no group of its own yet
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
        self.connection.close()


def _stop(workers: Sequence[_Worker]) -> None:
    for worker in workers:
        worker.stop()
    for worker in workers:
        worker.process.join(_STOP_S)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"signal {signal.Signals(-code).name}{hint}"
    return f"status {code}"


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Variables that a child is to find before it imports anything."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, run_cell: str, workspace: Path, logs: Path) -> None:
    """A worker's life: a cell comes, its record goes."""
    os.setsid()  # Ctrl-C in the terminal is for who started us, and killing our group is killing ours alone
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    forget_settings()
    logs.mkdir(parents=True, exist_ok=True)
    while True:
        try:
            cell: Cell = connection.recv()
        except EOFError:
            return
        with (logs / f"{cell.id}.log").open("w") as log:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        connection.send(record_of(run_cell, cell, workspace))


def forget_settings() -> None:
    """Leave no variable that would change a cell's settings: it has all of them, and its id says so."""
    for name in [name for name in os.environ if name.startswith("FKD_") and name != "FKD_CACHE"]:
        del os.environ[name]


def _end_with_parent() -> None:
    """A parent that was killed cannot stop us."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.killpg(0, signal.SIGKILL)
