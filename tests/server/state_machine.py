"""A coordinator around a method of one phase, for the tests of the state machine."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fkd_server.coordinator import Coordinator
from fkd_server.method.federated_method import (
    BelowQuorum,
    Json,
    NoUpload,
    Participants,
    PhasePlan,
    TaskContent,
    UploadContent,
)
from fkd_server.run_state import AssignedTask, ClosedPhase, Event, MustWait, PhaseKey, Position, RunOver

from .tiny import STUDENT, events_named, tiny_config


class Gathering:
    """A method whose rounds gather one upload per client and keep only the names."""

    def __init__(self, rounds_with_phase: int = 1) -> None:
        self.closed: list[list[str]] = []
        self._first = rounds_with_phase

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        if round_number < self._first:
            return ()
        return (PhasePlan(STUDENT, Participants.COHORT, BelowQuorum.FOLLOW_POLICY),)

    def needed(self, phase: int) -> int:
        return 0

    def task(self, phase: int, client: str) -> TaskContent:
        return TaskContent()

    def can_count(self, phase: int, upload: UploadContent) -> bool:
        return True

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        self.closed.append(list(uploads))
        return {}

    def snapshot(self) -> dict[str, Json]:
        return {}

    def restore(self, snapshot: Mapping[str, Json]) -> None:
        pass

    def in_use(self) -> set[str]:
        return set()


class Notes:
    """A journal in memory."""

    def __init__(self) -> None:
        self.digests: dict[tuple[str, PhaseKey], str] = {}
        self.positions: list[Position] = []

    def client_joined(self, name: str, session: bytes, relay: bool) -> None:
        pass

    def client_away(self, name: str) -> None:
        pass

    def client_forgotten(self, name: str) -> None:
        pass

    def client_ready(self, name: str) -> None:
        pass

    def upload_accepted(self, key: PhaseKey, client: str, digest: str, content: UploadContent) -> None:
        self.digests[client, key] = digest

    def moved(
        self,
        to: Position,
        keep: Collection[str],
        *,
        closed: ClosedPhase | None = None,
        round_record: Mapping[str, Any] | None = None,
    ) -> None:
        self.positions.append(to)

    def digest_of(self, client: str, key: PhaseKey) -> str | None:
        return self.digests.get((client, key))


class Run:
    """A coordinator and its events; a client's session is its name."""

    def __init__(self, **changes: Any) -> None:
        self.events: list[Event] = []
        self.method = Gathering()
        self.notes = Notes()
        self.coordinator = Coordinator(tiny_config(**changes), self.method, self.notes, self.events.append)

    def join(self, *names: str, now: float = 0.0) -> None:
        for name in names:
            self.coordinator.register(name, name.encode(), now)
        for name in names:
            self.poll(name, now)

    def poll(self, name: str, now: float = 0.0) -> AssignedTask | MustWait | RunOver:
        return self.coordinator.next_task(name.encode(), now)

    def submit(self, name: str, round_number: int = 1, now: float = 0.0, digest: str = "") -> bool:
        key = PhaseKey(round_number, STUDENT)
        digest = digest or f"{name}'s"
        duplicate = self.coordinator.submit(name.encode(), key, digest, NoUpload(), now).duplicate
        self.coordinator.tick(now)
        return duplicate

    def alive(self, *names: str, now: float) -> None:
        for name in names:
            self.coordinator.attendance.seen(name.encode(), now)

    def named(self, name: str) -> list[dict[str, Any]]:
        return list(events_named(self.events, name))
