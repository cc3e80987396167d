"""A client's session with the coordinator: registration, retries, signs of life, and the client's own ledger."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
import tenacity
from google.protobuf.message import DecodeError, Message

from fkd_client.run_info import RunInfo, run_info
from fkd_common.errors import (
    FkdError,
    RefusedError,
    RunAbortedError,
    SupersededError,
    UnauthenticatedError,
    UnreachableError,
)
from fkd_common.failpoints import during, failpoint
from fkd_common.ledger import PHASE_NAMES, ByteCount, Ledger, LedgerKey
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_POLL_S, METHODS, PREPARING, PROTOCOL_VERSION, Transport

CALL_TIMEOUT_S = 30.0
"""Deadline of every call but the long poll, which has MAX_POLL_S more."""
MAX_BEAT_S = 60.0
"""Longest time between two signs of life, whatever a coordinator says."""

_Response = TypeVar("_Response", bound=Message)


class TaskClosedError(FkdError):
    """The task at work no longer counts: the round went on without it."""


@dataclass
class Work:
    """What the client is doing, for its heartbeats."""

    key: types.TaskKey | None = None
    activity: str = ""
    progress: float = 0.0
    closed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Session:
    """Calls to one coordinator under one name."""

    def __init__(self, transport: Transport, name: str, patience_s: float, *, announce: bool = True) -> None:
        """No call is made yet.

        Args:
            transport: To the coordinator.
            name: The client's.
            patience_s: How long a call is tried again while nobody answers, in seconds.
            announce: Whether the log is told of calls that nobody answers, and a coordinator that prepares its run is
                waited for as long as that takes; else the caller tells people, and calls again.
        """
        self.name = name
        self.ledger = Ledger()
        self.unheard = ""
        """Why the last sign of life got no answer; empty if it did."""
        self._announce = announce
        self._transport = transport
        self._patience_s = patience_s
        self._token = b""
        self._work = Work()
        self._busy = threading.Event()
        self._closed = threading.Event()
        self._fatal: FkdError | None = None
        self._log = structlog.get_logger().bind(client=name)
        self._heart: threading.Thread | None = None

    # -- calls ------------------------------------------------------------------------------------

    def call(
        self,
        name: str,
        request: Any,
        answer: type[_Response],
        *,
        key: types.TaskKey | None = None,
        phase: int = types.PHASE_CONTROL,
        payload_up: int = 0,
        payload_down: Callable[[_Response], int] = lambda response: 0,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> _Response:
        """Make a call, again and again while the coordinator does not answer, for as long as patience lasts.

        A coordinator that says it is preparing does answer: patience begins anew, unless the caller tells people.

        Args:
            name: Method of fkd.v1.Coordinator.
            request: Its request, without session.
            answer: Type of its response.
            key: Task whose round and phase the bytes are booked under.
            phase: Phase to book under where there is no task.
            payload_up: Tensor bytes in the request.
            payload_down: Tensor bytes in the response.
            timeout_s: Deadline of one attempt.

        Raises:
            FkdError: The coordinator refused.
            UnreachableError: Patience ran out.
        """
        if "session" in request.DESCRIPTOR.fields_by_name:
            request.session = self._token
        raw = request.SerializeToString()
        booked = key.phase if key and key.phase in PHASE_NAMES else phase
        where = LedgerKey(self.name, key.round if key else 0, PHASE_NAMES[booked])

        answered = time.monotonic()

        def attempt() -> _Response:
            nonlocal answered
            failpoint(f"{name}.calling")
            try:
                reply = self._transport.call(METHODS[name], raw, timeout_s)
            except FkdError as error:
                if error.reason == PREPARING and self._announce:
                    answered = time.monotonic()
                self.ledger.book(where, ByteCount(calls=1, message_up=len(raw), wasted=len(raw)))
                raise
            failpoint(f"{name}.answered")
            try:
                response = answer.FromString(reply)
            except DecodeError as error:
                raise RefusedError(
                    f"what answered {name} is no fkd coordinator of this release: its answer cannot be read",
                    reason="MALFORMED",
                ) from error
            count = ByteCount(1, payload_up, payload_down(response), len(raw), len(reply))
            if getattr(response, "duplicate", False):  # it counted before, so it does not count again
                count.payload_up, count.wasted = 0, len(raw) + len(reply)
            self.ledger.book(where, count)
            if isinstance(response, pb.SubmitResponse):
                self._log.info(
                    "acknowledged",
                    round=where.round,
                    phase=where.phase,
                    receipt=response.receipt[:16],
                    **({"again": True} if response.duplicate else {}),
                )
            return response

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(UnreachableError),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5.0),
            stop=lambda _: self._closed.is_set() or time.monotonic() - answered >= self._patience_s,
            before_sleep=lambda state: self._say_unreachable(state, answered),
            sleep=tenacity.sleep_using_event(self._closed),
            reraise=True,
        )
        return retrying(attempt)

    def _say_unreachable(self, state: tenacity.RetryCallState, answered: float) -> None:
        if not self._announce:
            return
        error = state.outcome.exception() if state.outcome else None
        preparing = isinstance(error, FkdError) and error.reason == PREPARING
        # How far a preparation is changes: said oftener, about every 10 s.
        if state.attempt_number in (1, 3) or state.attempt_number % (3 if preparing else 10) == 0:
            self._log.warning(
                "coordinator_not_ready" if preparing else "coordinator_unreachable",
                attempt=state.attempt_number,
                giving_up_in_s=round(max(0.0, self._patience_s - (time.monotonic() - answered))),
                detail=str(error),
            )

    # -- the session's life -----------------------------------------------------------------------

    def register(self, *, relay: bool = False) -> RunInfo:
        """Open the session and learn about the run; waits for the coordinator as long as patience lasts.

        Args:
            relay: Whether what is sent are sums over clients of the caller's own.

        Raises:
            RefusedError: The coordinator's description of the run is not consistent or not understood.
            UnreachableError: No coordinator answered.
        """
        request = pb.RegisterRequest(protocol_version=PROTOCOL_VERSION, client_name=self.name, relay=relay)
        told = self.call("Register", request, pb.RegisterResponse, phase=types.PHASE_SETUP)
        self._token = told.session
        run = run_info(told)
        self._heart = threading.Thread(
            target=self._beat, args=(run.config.heartbeat_s,), name="heartbeat", daemon=True
        )
        self._heart.start()
        return run

    def next_task(self) -> pb.NextTaskResponse:
        """One long poll."""
        request = pb.NextTaskRequest(wait_s=MAX_POLL_S)
        return self.call("NextTask", request, pb.NextTaskResponse, timeout_s=MAX_POLL_S + CALL_TIMEOUT_S)

    def report_failure(self, key: types.TaskKey, detail: str) -> None:
        """Tell the coordinator to go on without this client."""
        request = pb.ReportFailureRequest(key=key, detail=detail[:500])
        self.call("ReportFailure", request, pb.ReportFailureResponse, key=key)

    def leave(self, reason: str = "") -> None:
        """Say goodbye, at most once and without insisting; `reason` is the kind of error that ends it, if any."""
        self.close(notify=True, reason=reason)

    def close(self, *, notify: bool, reason: str = "") -> None:
        """End the session; with `notify`, tell the coordinator first."""
        if self._closed.is_set():
            return
        self._closed.set()
        if self._heart is not None:
            self._heart.join(timeout=5.0)
        if notify and self._token:
            try:
                self.call("Leave", pb.LeaveRequest(reason=reason), pb.LeaveResponse, timeout_s=2.0)
            except FkdError as error:
                self._log.info("left_unnoticed", detail=str(error))
        self._transport.close()

    # -- signs of life ----------------------------------------------------------------------------

    def begin(self, key: types.TaskKey | None) -> None:
        """Work starts: send signs of life until :meth:`end`."""
        phase = PHASE_NAMES.get(key.phase, "") if key is not None else "setup"
        during(phase)
        with self._work.lock:
            self._work.key, self._work.closed = key, False
            self._work.activity, self._work.progress = phase, 0.0  # until the work says more
        self.unheard = ""
        self._busy.set()

    @property
    def busy(self) -> bool:
        """Whether work is going on."""
        return self._busy.is_set()

    def end(self) -> None:
        """Work is done; an open poll is sign of life enough."""
        self._busy.clear()

    def progress(self, fraction: float, activity: str) -> None:
        """Note how far the work is.

        Raises:
            TaskClosedError: The work no longer counts.
            FkdError: The session ended while working.
        """
        with self._work.lock:
            self._work.progress, self._work.activity = fraction, activity
            if self._fatal is not None:
                raise self._fatal
            if self._work.closed:
                raise TaskClosedError("the phase closed before this task was done")

    def _beat(self, every_s: float) -> None:
        next_in_s = every_s
        while not self._closed.wait(next_in_s):
            if not self._busy.is_set():
                continue
            with self._work.lock:
                work = self._work
                request = pb.HeartbeatRequest(key=work.key, activity=work.activity, progress=work.progress)
            try:
                told = self.call("Heartbeat", request, pb.HeartbeatResponse, timeout_s=5.0)
            except (SupersededError, UnauthenticatedError, RefusedError) as error:
                self._fatal = error
                return
            except FkdError as error:
                self.unheard = str(error)
                if self._announce:
                    self._log.info("heartbeat_failed", detail=str(error))
                continue
            self.unheard = ""
            next_in_s = min(max(every_s, told.next_in_s), MAX_BEAT_S)
            # The private model is the client's own affair: it may be finished after its phase, and after the run.
            private = request.key.phase == types.PHASE_PERSONAL
            if told.HasField("finished") and not (told.finished.completed and private):
                detail = told.finished.detail
                self._fatal = RunAbortedError(f"the run ended before this client was done: {detail}")
                return
            with self._work.lock:
                self._work.closed = told.task_closed and not private and self._work.key == request.key
