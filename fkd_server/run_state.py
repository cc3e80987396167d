"""The words the coordinator speaks: phases, events, answers, and what it remembers; no behaviour."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from fkd_common.ledger import PHASE_NAMES
from fkd_server.method.federated_method import Json, PhasePlan, TaskContent, UploadContent

MAX_DETAIL = 500
"""Characters of a failure's description that are kept."""


@dataclass(frozen=True, order=True)
class PhaseKey:
    """A phase of a round: what tasks and uploads are keyed by."""

    round: int
    phase: int

    def __str__(self) -> str:
        return f"round {self.round}, {PHASE_NAMES.get(self.phase, str(self.phase))}"


@dataclass(frozen=True)
class Event:
    """Something that happened, for logs and records."""

    name: str
    fields: dict[str, Json]


@dataclass(frozen=True)
class AssignedTask:
    """A task for one client."""

    key: PhaseKey
    deadline_s: float
    content: TaskContent


@dataclass(frozen=True)
class MustWait:
    """Nothing to do yet, and why."""

    reason: str


@dataclass(frozen=True)
class RunOver:
    """The run has ended."""

    completed: bool
    detail: str


@dataclass(frozen=True)
class Receipt:
    """Acknowledges an upload; `duplicate` when it had been accepted before."""

    digest: str
    duplicate: bool


class RunState(Enum):
    """Where a run stands."""

    GATHERING = "gathering"
    RUNNING = "running"
    COMPLETED = "completed"
    ABORTED = "aborted"


@dataclass(frozen=True)
class PhaseAtWork:
    """What is fixed about an open phase."""

    phase: int
    participants: tuple[str, ...]
    quorum: int
    """Uploads that close it, fixed when it opens: stand-ins do not raise the bar."""
    extended: bool = False


@dataclass(frozen=True)
class Position:
    """Where the run stands: everything the coordinator decides by, besides who is alive and what was uploaded."""

    state: RunState = RunState.GATHERING
    detail: str = ""
    round: int = -1
    cohort: tuple[str, ...] = ()
    to_come: tuple[int, ...] = ()
    """Phases of the round that have not begun."""
    open: PhaseAtWork | None = None
    record: Mapping[str, Any] = field(default_factory=dict)
    """What the round's record says so far; empty between rounds."""
    method: Mapping[str, Any] = field(default_factory=dict)
    """The method's snapshot."""
    paused_by: str = ""
    """The operator that paused the run; empty if nobody has."""


@dataclass(frozen=True)
class ClosedPhase:
    """A phase that has ended, and what its record says."""

    key: PhaseKey
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class KnownClient:
    """What is remembered of a client across restarts."""

    name: str
    session: bytes
    ready: bool = False
    """Whether it has asked for a task."""
    contributed: bool = False
    """Whether an upload of it has ever been accepted."""
    relay: bool = False
    """Whether it sends sums over clients of its own."""


class Journal(Protocol):
    """Makes the run durable: each call is one transaction that is on disk when it returns.

    Every method raises OSError when the disk does not take it; then nothing has changed.
    """

    def client_joined(self, name: str, session: bytes, relay: bool) -> None:
        """A session begins; the client's earlier one ends."""

    def client_away(self, name: str) -> None:
        """A client has left, or fallen silent."""

    def client_forgotten(self, name: str) -> None:
        """A client that never contributed makes room for others."""

    def client_ready(self, name: str) -> None:
        """A client has asked for its first task."""

    def upload_accepted(self, key: PhaseKey, client: str, digest: str, content: UploadContent) -> None:
        """An upload counts from now on."""

    def moved(
        self,
        to: Position,
        keep: Collection[str],
        *,
        closed: ClosedPhase | None = None,
        round_record: Mapping[str, Any] | None = None,
    ) -> None:
        """The run stands elsewhere now.

        Args:
            to: Where.
            keep: Hashes of the artifacts that are still needed.
            closed: The phase that ended with this step.
            round_record: What happened in the round that ended with this step.
        """

    def digest_of(self, client: str, key: PhaseKey) -> str | None:
        """Of the upload accepted from a client for a key."""


@dataclass
class ClientRecord:
    """What the coordinator knows of a client."""

    name: str
    session: bytes
    last_seen: float
    alive: bool = True
    left: bool = False
    """Whether it went away on purpose."""
    ready: bool = False
    contributed: bool = False
    """Whether an upload of it has ever been accepted."""
    relay: bool = False
    """Whether it sends sums over clients of its own."""
    activity: str = ""
    progress: float = 0.0
    unheard: bool = False
    """Whether it was there when an earlier process ended, and nothing has been heard of it since."""
    told: bool = False
    """Whether it has learnt that the run is over."""
    leisure: float = 1.0
    """Its signs of life may come so many times more slowly than the run says."""


@dataclass
class OpenPhase:
    """What is counted while a phase is open."""

    plan: PhasePlan
    key: PhaseKey
    opened: float
    deadline: float
    retry_at: float = 0.0
    """Not to be closed before: the disk refused."""
    uploads: dict[str, UploadContent] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
