"""Seconds of a client's work by phase, of the clock and of the processors; measures, decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """What the phases of one client's work took so far."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        """By phase, on the clock."""
        self.cpu_seconds: dict[str, float] = {}
        """By phase, of all threads of the process: where it is several clients', of all that were at work."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add what the block takes to that phase, also if it fails."""
        start, cpu_start = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            for kept, took in (
                (self.seconds, time.perf_counter() - start),
                (self.cpu_seconds, time.process_time() - cpu_start),
            ):
                kept[name] = kept.get(name, 0.0) + took
