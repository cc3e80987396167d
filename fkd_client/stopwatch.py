"""Seconds of a client's work by phase; measures, decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    """Add what the block takes to `seconds` of that phase, also if it fails."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - start
