"""CPU seconds and resident memory of processes and all they started, from /proc; starts nothing."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

_EVERY_S = 0.1
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_KIB = 1024
_GONE = (FileNotFoundError, ProcessLookupError, IndexError, ValueError)
"""What reading /proc says of a process that ends meanwhile."""


class ProcessTree:
    """Some processes with their descendants, looked at ten times a second.

    CPU time is exact to the clock's tick: a child's is its own while it lives and its parent's once it is waited for.
    Peak memory is the largest sum of resident sizes that was seen, and at least the largest peak of one process as
    the kernel knows it, which for a program of one process is exact. Shared pages count once per process.
    """

    def __init__(self, *roots: int) -> None:
        """Look at nothing yet.

        Args:
            roots: Process ids.
        """
        self.peak_rss_bytes = 0
        self._roots = roots
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def cpu_s(self) -> float:
        """CPU seconds so far, of user and system."""
        ticks = 0
        for pid in with_descendants(self._roots):
            with contextlib.suppress(*_GONE):
                # The program's name, in parentheses, may hold anything; utime, stime, cutime and cstime are 14 to 17.
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
        return ticks / _TICKS_PER_S

    def _watch(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self._note_memory()

    def _note_memory(self) -> None:
        now = 0
        for pid in with_descendants(self._roots):
            with contextlib.suppress(*_GONE):
                status = Path(f"/proc/{pid}/status").read_text()
                now += _kib(status, "VmRSS") * _KIB
                self.peak_rss_bytes = max(self.peak_rss_bytes, _kib(status, "VmHWM") * _KIB)
        self.peak_rss_bytes = max(self.peak_rss_bytes, now)


def with_descendants(roots: Iterable[int]) -> Iterator[int]:
    """Process ids of processes and of all they have started, as long as those in between live."""
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        yield pid
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(*_GONE):
                waiting += map(int, (thread / "children").read_text().split())


def _kib(status: str, name: str) -> int:
    """A size of /proc/PID/status; 0 of a process that has ended and is not waited for yet."""
    line = next((line for line in status.splitlines() if line.startswith(f"{name}:")), "")
    return int(line.split()[1]) if line else 0
