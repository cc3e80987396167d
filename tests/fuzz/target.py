"""What a fuzz target is: a name, something that reads bytes, and inputs to start from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Read = Callable[[bytes, Path], object]
"""Reads one input; may write into the folder. Only an FkdError may come out."""


@dataclass(frozen=True)
class Target:
    """One reader of foreign bytes."""

    name: str
    read: Read
    seeds: Callable[[Path], dict[str, bytes]]
    """Inputs to start from, by name; may write into the folder."""
    mutate: Callable[[bytes, int, int], bytes] | None = None
    """(input, largest size, seed) → another input, for readers whose bytes have a structure."""
    seconds_per_input: int = 5
    """Longest an input may take. Far above what one takes on an idle machine: tests share their cores."""


class WrongError(AssertionError):
    """A reader accepted what it must not accept."""


def demand(true: bool, promise: str) -> None:
    """Turn a broken promise into a finding.

    Raises:
        WrongError: It is broken.
    """
    if not true:
        raise WrongError(promise)
