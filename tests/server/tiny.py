"""A run small enough to follow by hand, and a client of a few lines that speaks the protocol's bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fkd_common.choices import UNCODED
from fkd_common.config import RunConfig
from fkd_common.method.student_layout import initial_student
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import METHODS, PROTOCOL_VERSION, Method
from fkd_common.tensors import encode
from fkd_server.admin import Admin
from fkd_server.chronicle import Chronicle
from fkd_server.coordinator import Coordinator
from fkd_server.method.fkd_rtm import FkdRtm, method_for
from fkd_server.overview import Overview
from fkd_server.published_files import PublishedFiles
from fkd_server.run_state import Event, PhaseKey, Position
from fkd_server.service import CoordinatorService, RunIdentity
from fkd_server.spool import UploadSpool
from fkd_server.store import RunDescription, RunStore
from fkd_server.validation import UploadRules

STUDENT, RESIDUALS, MOMENTS = types.PHASE_STUDENT, types.PHASE_RESIDUALS, types.PHASE_MOMENTS
VOTES, PERSONAL = types.PHASE_VOTES, types.PHASE_PERSONAL

CLASSES = ("cat", "dog")
ANCHORS = np.array([[0, 0, 0], [2, 0, 1], [0, 4, 1], [2, 4, 2]], dtype=np.float32)
"""4 anchors, d = 3."""


def tiny_config(**changes: Any) -> RunConfig:
    """2 clients, 1 round and nothing before it, hidden layer of 2, no corrections, no personalisation, no codecs."""
    keys: dict[str, Any] = {
        "rounds": 1, "clients_per_round": 1.0, "min_clients": 2, "min_cohort": 1, "phase_deadline_s": 60.0,
        "heartbeat_s": 2.0, "heartbeat_limit_s": 8.0, "hidden": (2,), "dropout": (0.0,), "norm": "layer",
        "correction": (), "personal": (), "lambda_grid": (1.0, 10.0), "anchor_lambda_grid": (1.0, 10.0),
        "correction_at_start": False, "refine_steps": 0, **UNCODED,
    }  # fmt: skip
    return RunConfig(**{**keys, **changes})


@dataclass
class Clock:
    """Time that passes when told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class _Everything:
    """Holds whatever it is asked for."""

    def __contains__(self, name: object) -> bool:
        return True


RELAYS = _Everything()
"""Who may be a relay in a tiny run: anybody."""


@dataclass
class TinyRun:
    """A wired-up run without a network."""

    method: FkdRtm
    coordinator: Coordinator
    service: CoordinatorService
    store: RunStore
    clock: Clock
    blobs: Path
    uploads: Path
    chronicle: Chronicle
    overview: Overview
    admin: Admin
    events: list[Event] = field(default_factory=list)

    def site(self, name: str) -> Site:
        """A registered client."""
        return Site(name, self.answer)

    def answer(self, method: Method, request: bytes) -> bytes:
        """One call."""
        response = self.service.handle(method, request)
        assert response is not None
        return response

    def rounds(self) -> list[dict[str, Any]]:
        """Records of the rounds closed so far."""
        return [event.fields for event in self.events if event.name == "round_closed"]


def tiny_run(
    folder: Path, *, anchors: np.ndarray = ANCHORS, classes: tuple[str, ...] = CLASSES, **changes: Any
) -> TinyRun:
    """A run in a folder, or, called again, the same run after its coordinator died; artifacts are stand-ins."""
    clock, events, chronicle = Clock(), list[Event](), Chronicle()

    def note(event: Event) -> None:
        events.append(event)
        chronicle.events.add(event.name, event.fields)
        if event.name == "round_closed":
            chronicle.history.add(event.fields)

    folder.mkdir(exist_ok=True)
    store = RunStore.open(folder)
    began = store.description()
    config = tiny_config(**changes)
    if began is None:
        extractor = store.blobs.put(encode({"extractor": np.zeros(5, dtype=np.float32)}))
        began = RunDescription("run-1", config.model_dump(mode="json"), {}, classes, extractor, extractor)
    method = method_for(config)(config, classes, anchors, began.extractor.sha256, store.blobs, store.uploads)
    coordinator = Coordinator(config, method, store, note)
    if store.description() is None:
        store.begin(began, Position(method=method.snapshot()))
    else:
        at = store.position()
        waiting = store.uploads_for(PhaseKey(at.round, at.open.phase)) if at.open else {}
        coordinator.resume(at, store.clients(), waiting, clock.now)
    identity = RunIdentity("run-1", classes, {"extractor": began.extractor})
    spool = UploadSpool(folder / "spool")
    rules = UploadRules.of(method)
    service = CoordinatorService(identity, coordinator, method, rules, store, spool, clock, RELAYS)
    overview = Overview(service, chronicle, store, method.embedding_dim)
    files = PublishedFiles(folder / "model.safetensors", chronicle, began.extractor, store.blobs)
    return TinyRun(
        method,
        coordinator,
        service,
        store,
        clock,
        folder / "blobs",
        folder / "uploads",
        chronicle,
        overview,
        Admin(service, overview, files),
        events,
    )


class Site:
    """A client that computes nothing: what it uploads is what a test gives it."""

    def __init__(self, name: str, answer: Callable[[Method, bytes], bytes]) -> None:
        self.name = name
        self.answer = answer
        told = self.call("Register", protocol_version=PROTOCOL_VERSION, client_name=name)
        self.told, self.session = told, told.session

    def call(self, name: str, **fields: Any) -> Any:
        """One call, with this client's session."""
        method = METHODS[name]
        if name != "Register":
            fields = {"session": self.session, **fields}
        request = method.request_type(**fields)
        return method.response_type.FromString(self.answer(method, request.SerializeToString()))

    def poll(self, wait_s: float = 0.0) -> pb.NextTaskResponse:
        """Ask for a task."""
        answer: pb.NextTaskResponse = self.call("NextTask", wait_s=wait_s)
        return answer

    def key(self, round_number: int, phase: int, run_id: str = "run-1") -> types.TaskKey:
        """A task key."""
        return types.TaskKey(run_id=run_id, round=round_number, phase=phase)  # type: ignore[arg-type]

    def fetch(self, reference: types.ArtifactRef, key: types.TaskKey, step: int = 1 << 20) -> bytes:
        """An artifact, in chunks."""
        return b"".join(
            self.call("GetChunk", key=key, sha256=reference.sha256, offset=at, length=step).data
            for at in range(0, reference.size, step)
        )

    def send(self, blob: bytes, key: types.TaskKey, step: int = 1 << 20) -> types.Upload:
        """An upload, in chunks."""
        digest = hashlib.sha256(blob).digest()
        for at in range(0, len(blob), step):
            self.call(
                "PutChunk", key=key, sha256=digest, size=len(blob), offset=at, data=blob[at : at + step]
            )
        return types.Upload(sha256=digest, size=len(blob))

    def submit_student(
        self, round_number: int, student: dict[str, np.ndarray], n: int = 10, r: float = 1.0
    ) -> pb.SubmitResponse:
        """Stage 1, inline."""
        answer: pb.SubmitResponse = self.call(
            "SubmitStudent",
            key=self.key(round_number, STUDENT),
            upload=inline(encode(student)),
            num_samples=n,
            reliability=r,
        )
        return answer


def inline(blob: bytes) -> types.Upload:
    """A small upload, inside its message."""
    return types.Upload(sha256=hashlib.sha256(blob).digest(), size=len(blob), inline=blob)


def begun(method: FkdRtm) -> FkdRtm:
    """A method after stage 1 of a round, whose average happens to be the first student: S = 0, moments of all z."""
    config = method.config
    start = initial_student(config.seed, method.embedding_dim, config.hidden, method.num_classes, config.norm)
    method.replace_student(start)
    return method


def filled(method: FkdRtm, value: float) -> dict[str, np.ndarray]:
    """A student whose every weight is `value`."""
    layout = UploadRules.of(method).schema(STUDENT, block_known=False)
    return {name: np.full(spec.shape, value, dtype=spec.dtype) for name, spec in layout.items()}


def events_named(events: list[Event], name: str) -> Iterator[dict[str, Any]]:
    """Fields of the events of a name."""
    return (event.fields for event in events if event.name == name)
