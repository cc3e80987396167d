"""What has happened in a run, for those who look on: events, rounds that are over, the model; writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from fkd_server.event_log import EventLog
from fkd_server.history import History


@dataclass(frozen=True)
class WrittenModel:
    """The model in the run's folder."""

    sha256: str
    round: int
    """After which it was written."""
    published: str
    """The candidate it publishes."""


@dataclass
class Chronicle:
    """What the recorder has seen."""

    events: EventLog = field(default_factory=EventLog)
    """What happened since this process began."""
    history: History = field(default_factory=History)
    """What the rounds that are over say."""
    model: WrittenModel | None = None
    """The model written last."""
