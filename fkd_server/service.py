"""The coordinator's protocol as a plain object: bytes in, bytes out, every byte booked; works without a network.

Each call is parsed, its session looked up, validated, handed to the state machine, and answered. No
arithmetic, no sockets, no clock of its own. One lock serialises calls: the state machine is single-threaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from fkd_common.artifacts import Artifact
from fkd_common.errors import (
    CorruptTransferError,
    DamagedFileError,
    FkdError,
    ForbiddenError,
    InvalidUploadError,
    MethodError,
    NotFoundError,
    RefusedError,
    StaleError,
    TooLargeError,
    UnreachableError,
)
from fkd_common.failpoints import failpoint
from fkd_common.identifiers import check_client_name
from fkd_common.ledger import PHASE_NAMES, ByteCount
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.printable import printable
from fkd_common.rpc import MAX_CHUNK_BYTES, PROTOCOL_VERSION, Method
from fkd_common.tensors import chunk_payload
from fkd_server.access.identity import UNPROVEN, Peer, Role
from fkd_server.booked_call import Call
from fkd_server.coordinator import Coordinator
from fkd_server.disk_trouble import DiskTrouble, storage_error
from fkd_server.messages import (
    artifact_ref,
    finished,
    next_task_response,
    sha256_of,
    submission_digest,
    submit_response,
)
from fkd_server.method.federated_method import (
    FederatedMethod,
    UploadContent,
)
from fkd_server.method_trouble import MethodTrouble
from fkd_server.run_state import MAX_DETAIL, PhaseKey, Receipt
from fkd_server.spool import UploadSpool
from fkd_server.store import RunStore, TakenOverError
from fkd_server.submissions import SUBMITS, TENSOR_SUBMITS, Submissions
from fkd_server.validation import UploadRules

_Seen = TypeVar("_Seen")

SAVE_LEDGER_S = 5.0
"""A coordinator that is killed forgets at most the message bytes of so many seconds; never those of an upload."""


@dataclass(frozen=True)
class RunIdentity:
    """What registration tells a client about the run."""

    run_id: str
    classes: tuple[str, ...]
    artifacts: Mapping[str, Artifact]


class CoordinatorService:
    """Answers fkd.v1.Coordinator."""

    def __init__(
        self,
        identity: RunIdentity,
        coordinator: Coordinator,
        method: FederatedMethod,
        rules: UploadRules,
        store: RunStore,
        spool: UploadSpool,
        clock: Callable[[], float],
        relays: Container[str] = (),
    ) -> None:
        self._relays = relays
        self.ledger = store.ledger
        self.identity = identity
        self._coordinator = coordinator
        # Once: they do not change, and every poll of every client needs the hash.
        self._config_json, self.config_sha256 = method.config.canonical_json(), method.config.sha256()
        self._method = method
        self._submissions = Submissions(method, rules, store, spool)
        self._store = store
        self._spool = spool
        self._spooling_for: PhaseKey | None = None
        self._clock = clock
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []
        self.disk = DiskTrouble(clock)
        self.trouble = MethodTrouble(coordinator.config.method, identity.run_id)
        self._ledger_saved = clock()
        self._run_tag = hashlib.sha256(identity.run_id.encode()).digest()[:4]

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self.identity.run_id

    # -- entry points -----------------------------------------------------------------------------

    def handle(
        self, method: Method, raw: bytes, *, hold: bool = False, peer: Peer = UNPROVEN
    ) -> bytes | None:
        """Answer one call.

        Args:
            method: Which call.
            raw: The serialised request.
            hold: For a long poll: answer None, and book nothing, while the answer would be "wait".
            peer: Who calls, as far as the connection proves it.

        Raises:
            FkdError: The call is refused; its bytes are booked as wasted.
        """
        with self._lock:
            state_before = self._fingerprint()
            call = Call(message_up=len(raw))
            try:
                self.trouble.refuse()
                request = method.request_type()
                try:
                    request.ParseFromString(raw)
                except DecodeError as error:
                    raise InvalidUploadError(
                        f"not a {method.name} request: {error}", reason="MALFORMED"
                    ) from error
                response = self._answer(method.name, request, call, peer, hold=hold)
            except (FkdError, OSError) as error:
                if not call.booked:
                    self._book(call, ByteCount(calls=1, message_up=len(raw), wasted=len(raw)))
                failpoint("call.refused")
                if isinstance(error, DamagedFileError):
                    self.disk.say(str(error))
                    raise UnreachableError(
                        "the coordinator has lost a file it needs", reason="STORAGE"
                    ) from error
                if isinstance(error, MethodError):
                    self.trouble.note(error)
                    self.trouble.refuse()
                if isinstance(error, FkdError):
                    raise
                raise storage_error(error) from error
            finally:
                if self._fingerprint() != state_before:
                    self._notify()
            if hold and isinstance(response, pb.NextTaskResponse) and response.HasField("wait"):
                return None
            answer = response.SerializeToString()
            if not call.booked:
                self._book(call, call.count(len(answer)))
            if method.name in SUBMITS:
                failpoint("submit.answering")
            return answer

    def tick(self, polling: Iterable[bytes] = ()) -> None:
        """Let time pass, and use it to tidy up.

        Args:
            polling: Sessions whose polls are held.

        Raises:
            MethodError: The method's own code has failed; the run is as it was before.
        """
        with self._lock:
            self._store.tidy()
            before = self._fingerprint()
            self._coordinator.attendance.still_poll(polling, self._clock())
            self._advance()
            if self._fingerprint() != before:
                self._notify()
            self.trouble.tell()

    def was_asleep(self, seconds: float) -> None:
        """Nothing was answered for so long."""
        with self._lock:
            self._coordinator.was_asleep(seconds)

    def _advance(self) -> None:
        """Let the state machine act; a disk that refuses is said so, and tried again at the next tick."""
        if self.trouble:
            return
        try:
            self._coordinator.tick(self._clock())
            self._spool.sweep(self._clock())
            if self._clock() - self._ledger_saved >= SAVE_LEDGER_S:
                self._store.save_ledger()
                self._ledger_saved = self._clock()
        except TakenOverError as error:
            raise RefusedError(f"{error}: this one stops", reason="TAKEN_OVER") from error
        except MethodError as error:
            self.trouble.note(error)
        except OSError as error:
            self.disk.say(str(error))

    def abort(self, detail: str) -> None:
        """End the run; clients learn it at their next call."""
        with self._lock:
            self._coordinator.abort(detail)
            self._notify()

    def pause(self, who: str) -> None:
        """Open no further phase, for this operator; clients learn it from what they wait for."""
        with self._lock:
            self._coordinator.pause(who)
            self._notify()

    def unpause(self, who: str) -> None:
        """Go on with a paused run."""
        with self._lock:
            self._coordinator.unpause(who)
            self._advance()
            self._notify()

    def waiting_for(self) -> str:
        """For a person: what the run waits for."""
        return self.look(lambda coordinator, now: coordinator.waiting_for(now))

    def look(self, question: Callable[[Coordinator, float], _Seen]) -> _Seen:
        """Ask the state machine something, while nothing changes; `question` also gets the time."""
        with self._lock:
            return question(self._coordinator, self._clock())

    def everyone_left(self) -> bool:
        """Whether nobody remains to be told that the run is over."""
        return self.look(lambda run, now: not (run.attendance.live() or run.attendance.untold()))

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a waiting client might get another answer."""
        self._listeners.append(listener)

    def _fingerprint(self) -> tuple[object, ...]:
        return (self._coordinator.state, self._coordinator.round, self._coordinator.open)

    def _notify(self) -> None:
        self._drop_what_cannot_count()
        for listener in self._listeners:
            listener()

    def _drop_what_cannot_count(self) -> None:
        """Of an upload that was not complete when its phase closed, nothing is kept."""
        key = self._coordinator.open.key if self._coordinator.open else None
        if self._spooling_for not in (None, key):
            with contextlib.suppress(OSError):  # it costs space until it expires, and nothing else
                self._spool.clear()
        self._spooling_for = key

    def _book(self, call: Call, count: ByteCount) -> None:
        self.ledger.book(call.place(), count)

    # -- calls ------------------------------------------------------------------------------------

    def _answer(self, name: str, request: Any, call: Call, peer: Peer, *, hold: bool) -> Message:
        if peer.role not in (None, Role.CLIENT):
            raise ForbiddenError(f"{peer.name} is an {peer.role}: only data sites take part in a run")
        if name == "Register":
            return self._register(request, call, peer)
        if not request.session.startswith(self._run_tag):
            raise RefusedError(
                f"the coordinator now serves another run, {self.run_id}: start this client again to take part in it",
                reason="OTHER_RUN",
            )
        client = self._coordinator.attendance.client_of(request.session)
        if peer.name not in (None, client.name):
            raise ForbiddenError(
                f"the certificate is {peer.name}'s, the session {client.name}'s", reason="WRONG_IDENTITY"
            )
        call.client = client.name
        if name == "NextTask":
            return self._next_task(request, told_why=not hold)
        if name == "Leave":
            self._coordinator.leave(request.session, self._clock(), printable(request.reason, 100))
            return pb.LeaveResponse()
        key = PhaseKey(request.key.round, request.key.phase)
        if name == "Heartbeat":
            return self._heartbeat(request, key)
        # Rows of the ledger are bounded: a round that the run does not have is booked as round 0.
        call.round = key.round if key.round <= self._coordinator.config.rounds else 0
        call.phase = key.phase
        self._check_run(request.key, key)
        self._coordinator.attendance.seen(request.session, self._clock())
        if name == "GetChunk":
            return self._get_chunk(request, call)
        if name == "PutChunk":
            return self._put_chunk(request, key, call)
        if name == "ReportFailure":
            self._coordinator.fail(request.session, key, printable(request.detail, MAX_DETAIL), self._clock())
            return pb.ReportFailureResponse()
        return self._submit(name, request, key, call)

    def _register(self, request: pb.RegisterRequest, call: Call, peer: Peer) -> pb.RegisterResponse:
        call.phase = types.PHASE_SETUP
        if request.protocol_version != PROTOCOL_VERSION:
            raise RefusedError(
                f"client speaks protocol {request.protocol_version}, this coordinator {PROTOCOL_VERSION}: "
                "install the same fkd release on both",
                reason="PROTOCOL_VERSION",
            )
        if peer.name is not None and request.client_name not in ("", peer.name):
            raise ForbiddenError(
                f"the certificate is {peer.name}'s, the request says {printable(request.client_name, 64)!r}: a "
                "client's id is its certificate's (leave out --name)",
                reason="WRONG_IDENTITY",
            )
        call.client = check_client_name(peer.name or request.client_name)
        if request.relay and call.client not in self._relays:
            raise RefusedError(
                f"{call.client} comes as a relay, and this coordinator takes sums only from those named with --relays",
                reason="NO_RELAY",
            )
        session = self._run_tag + secrets.token_bytes(12)
        self._coordinator.register(call.client, session, self._clock(), relay=request.relay)
        return pb.RegisterResponse(
            session=session,
            run_id=self.identity.run_id,
            config_json=self._config_json,
            config_sha256=self.config_sha256,
            classes=self.identity.classes,
            artifacts=[artifact_ref(name, item) for name, item in self.identity.artifacts.items()],
            max_chunk_bytes=MAX_CHUNK_BYTES,
        )

    def _next_task(self, request: pb.NextTaskRequest, *, told_why: bool) -> pb.NextTaskResponse:
        answer = self._coordinator.next_task(request.session, self._clock(), told_why=told_why)
        return next_task_response(answer, self.identity.run_id, self.config_sha256)

    def _heartbeat(self, request: pb.HeartbeatRequest, key: PhaseKey) -> pb.HeartbeatResponse:
        self._coordinator.attendance.seen(
            request.session, self._clock(), printable(request.activity, 100), request.progress
        )
        closed = request.HasField("key") and not self._coordinator.is_open(key)
        over = self._coordinator.outcome()
        return pb.HeartbeatResponse(
            task_closed=closed,
            finished=finished(over) if over else None,
            next_in_s=self._coordinator.attendance.next_beat_s(request.session),
        )

    def _check_run(self, sent: types.TaskKey, key: PhaseKey) -> None:
        if sent.run_id != self.identity.run_id:
            raise StaleError(
                f"this coordinator runs {self.identity.run_id}, the request is for {sent.run_id[:80]!r}",
                reason="WRONG_RUN",
            )
        if key.phase not in PHASE_NAMES:
            raise InvalidUploadError(f"unknown phase {key.phase}", reason="WRONG_PHASE")

    def _get_chunk(self, request: pb.GetChunkRequest, call: Call) -> pb.GetChunkResponse:
        sha256 = request.sha256.hex()
        artifact = self._served(sha256, request.key.phase, call.client)
        if artifact is None:
            raise NotFoundError(f"no artifact {sha256[:12]} is served at this point of the run")
        if not 0 < request.length <= MAX_CHUNK_BYTES or request.offset >= artifact.size:
            raise InvalidUploadError(
                f"chunk {request.offset}+{request.length} of an artifact of {artifact.size} bytes",
                reason="OUT_OF_RANGE",
            )
        if request.offset == 0:  # once per download: what is damaged here is our trouble, not the client's
            self._store.blobs.check(sha256)
        data = self._store.blobs.read_chunk(sha256, request.offset, request.length)
        call.payload_down = artifact.payload_in(request.offset, len(data))
        return pb.GetChunkResponse(data=data)

    def _served(self, sha256: str, phase: int, client: str) -> Artifact | None:
        """What a client may read now: its task's inputs, what the method shows to all, and what the run began with."""
        for served in (
            self._method.task(phase, client).inputs,
            self._method.artifacts(),
            self.identity.artifacts,
        ):
            for artifact in served.values():
                if artifact.sha256 == sha256:
                    return artifact
        return None

    def _put_chunk(self, request: pb.PutChunkRequest, key: PhaseKey, call: Call) -> pb.PutChunkResponse:
        self._submissions.check_size(key.phase, call.client, request.size)
        data = request.data  # once: every look at it is a copy
        if len(data) > MAX_CHUNK_BYTES:
            raise TooLargeError(f"chunk of {len(data)} bytes; at most {MAX_CHUNK_BYTES}")
        sha256 = sha256_of(request)
        if self._coordinator.check_current(request.session, key, sha256) is not None:
            call.duplicate = True
            return pb.PutChunkResponse(received=request.size, duplicate=True)
        if data:
            chunk_payload(data, request.offset, request.size)
        before = self._spool.held(call.client, sha256)
        received = self._spool.put(call.client, sha256, request.size, request.offset, data)
        failpoint("chunk.kept")
        if received <= before:  # repeated or premature: nothing of it is kept
            call.duplicate = bool(data)
        return pb.PutChunkResponse(received=received, duplicate=call.duplicate)

    def _submit(self, name: str, request: Any, key: PhaseKey, call: Call) -> pb.SubmitResponse:
        self._submissions.check_answers(name, key, call.client)
        digest = sha256_of(request.upload) if name in TENSOR_SUBMITS else submission_digest(request)
        receipt = self._coordinator.check_current(request.session, key, digest)
        if receipt is None:
            try:
                content = self._submissions.content(name, request, key, call)
            except CorruptTransferError:
                raise  # the client sends the same bytes again
            except FkdError as error:
                if error.reason != "INCOMPLETE_UPLOAD":
                    self._coordinator.fail(
                        request.session, key, printable(str(error), MAX_DETAIL), self._clock()
                    )
                raise
            receipt = self._accept(request.session, key, digest, content, call)
            with contextlib.suppress(OSError):  # what is left goes when the phase closes
                self._spool.discard(call.client)
            self._advance()  # the phase may close now; the upload counts whether or not the disk lets it
        call.duplicate = receipt.duplicate
        return submit_response(receipt)

    def _accept(
        self, session: bytes, key: PhaseKey, digest: str, content: UploadContent, call: Call
    ) -> Receipt:
        """Count an upload, and in the same transaction its bytes: a payload is booked once, when it counts."""
        count = call.count(len(submit_response(Receipt(digest, duplicate=False)).SerializeToString()))
        self._book(call, count)
        call.booked = True
        try:
            return self._coordinator.submit(session, key, digest, content, self._clock())
        except BaseException:
            self._book(call, -count)
            call.booked = False
            raise
