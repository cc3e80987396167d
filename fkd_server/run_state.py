"""The words the coordinator speaks: phases, events, answers, and what it remembers; no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from fkd_common.ledger import PHASE_NAMES
from fkd_server.federated_method import Json, PhasePlan, TaskContent, UploadContent

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


@dataclass
class ClientRecord:
    """What the coordinator knows of a client."""

    name: str
    session: bytes
    last_seen: float
    alive: bool = True
    ready: bool = False
    activity: str = ""
    progress: float = 0.0


@dataclass
class OpenPhase:
    """The phase at work."""

    plan: PhasePlan
    key: PhaseKey
    participants: tuple[str, ...]
    quorum: int
    """Uploads that close it, fixed when it opens: stand-ins do not raise the bar."""
    opened: float
    deadline: float
    extended: bool = False
    uploads: dict[str, UploadContent] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
