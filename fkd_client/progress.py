"""How long work tells its caller how far it is; nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with the fraction done (0 … 1) and what is being done."""


def silent(fraction: float, what: str) -> None:
    """The progress callback of callers that do not care."""


def part_of(progress: Progress, start: float, end: float) -> Progress:
    """The share `start` … `end` of a longer piece of work, as a progress callback of its own."""
    return lambda fraction, what: progress(start + fraction * (end - start), what)
