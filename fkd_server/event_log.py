"""What happened lately, for those who look on: numbered, bounded, safe to read from any thread; writes nothing."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime

from fkd_common.pb import admin_pb2 as pb
from fkd_common.printable import printable
from fkd_server.method.federated_method import Json

KEPT = 1000
"""Events that are kept."""
MAX_EVENT = 2000
"""Characters of an event's text."""
PAGE = 200
"""Events in one answer."""


class EventLog:
    """The last events of this process."""

    def __init__(self) -> None:
        self._events: deque[pb.EventStatus] = deque(maxlen=KEPT)
        self._number = 0
        self._lock = threading.Lock()

    def add(self, name: str, fields: Mapping[str, Json]) -> None:
        """Note an event.

        Args:
            name: What happened.
            fields: Round, phase and client, if it has them, and whatever else a log line shows.
        """
        known = {key: value for key, value in fields.items() if value is not None}
        place = {key: known.pop(key) for key in ("round", "phase", "client") if key in known}
        rest = [f"{key} {_text(value)}" for key, value in known.items()]
        with self._lock:
            self._number += 1
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            detail = printable(", ".join(rest), MAX_EVENT)
            event = pb.EventStatus(number=self._number, time=time, name=name, detail=detail)
            if "round" in place:
                event.round = int(str(place["round"]))
            event.phase, event.client = str(place.get("phase", "")), str(place.get("client", ""))
            self._events.append(event)

    def after(self, number: int) -> list[pb.EventStatus]:
        """The first :data:`PAGE` events that are newer than that one, oldest first."""
        with self._lock:
            return [event for event in self._events if event.number > number][:PAGE]


def _text(value: Json) -> str:
    """A value as a person would write it."""
    if isinstance(value, Mapping):
        return " ".join(f"{key} {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(_text(item) for item in value)
    return str(value)
