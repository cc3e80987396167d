"""When a phase may open: at once, or when another coordinator has said so; knows no clients and no content."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from fkd_server.run_state import PhaseKey


class Go(Enum):
    """What becomes of a phase."""

    OPEN = "open"
    WAIT = "not yet"
    SKIP = "go on without it"


@dataclass(frozen=True)
class Turn:
    """Whether it is a phase's turn."""

    go: Go = Go.OPEN
    until: float | None = None
    """When it has to be over, whatever the run's own deadline is; seconds of the coordinator's clock."""
    reason: str = ""
    """Why it is skipped, for the record."""


class Pace(Protocol):
    """Says when phases open. Asked at every tick, about the open phase too: a SKIP ends it without a result."""

    upstream: str
    """The coordinator that sets the pace, HOST:PORT; empty where nobody does."""

    def turn(self, key: PhaseKey) -> Turn:
        """Whether it is the turn of a phase that has not been closed."""

    def may_end(self) -> bool:
        """Whether a run whose rounds are done is over."""

    def awaits(self) -> str:
        """For a person: what has to happen elsewhere before the run goes on; empty where nothing has."""


class AtOnce:
    """Phases open one after another."""

    upstream = ""

    def turn(self, key: PhaseKey) -> Turn:
        """See :meth:`Pace.turn`."""
        return Turn()

    def may_end(self) -> bool:
        """See :meth:`Pace.may_end`."""
        return True

    def awaits(self) -> str:
        """See :meth:`Pace.awaits`."""
        return ""
