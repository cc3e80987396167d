"""The relay's end of the line to its upstream coordinator: takes tasks, hands in answers, keeps trying; folds nothing.

One thread, one step at a time. What it needs to know across restarts is in the run's own state: an answer is durable
before it is sent, and a task is asked for again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog

from fkd_client.run_info import pause_s
from fkd_client.session import Session, TaskClosedError
from fkd_client.transfer import Transfer
from fkd_common.errors import (
    ConflictError,
    DataError,
    FkdError,
    NotFoundError,
    RefusedError,
    RunAbortedError,
    StaleError,
    SupersededError,
    UnauthenticatedError,
    UnreachableError,
)
from fkd_common.ledger import PHASE_NAMES
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Transport
from fkd_relay.absence import Absence
from fkd_relay.credentials import relays_words
from fkd_relay.method import RelayFkdRtm
from fkd_relay.pace import UpstreamPace
from fkd_server.coordinator import Coordinator
from fkd_server.method.federated_method import Json
from fkd_server.run_state import Event, PhaseKey, RunState
from fkd_server.service import CoordinatorService
from fkd_server.store import RunStore

PATIENCE_S = 5.0
"""A call is tried so long before it is said that the upstream coordinator does not answer; then it is tried again."""
LOOK_S = 0.5
"""The upstream coordinator is told how far the clients are this often at most."""
MARGIN = 0.1
"""Share of a task's time that is kept for folding and for the way up."""
MAX_MARGIN_S = 30.0
GONE_S = 60.0
"""An upstream coordinator that has not answered for so long is not waited for to say that a finished run is over."""
ENDS = (
    "NO_RELAY",
    "OTHER_RUN",
    "RUN_OVER",
    "RUN_ABORTED",
    "PROTOCOL_VERSION",
    "ANOTHER_KIND",
    "WRONG_IDENTITY",
    "MALFORMED",
)
"""Refusals after which no other call can be answered."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class Ends:
    """What the line joins: the relay's own run, and what is known of the upstream one."""

    service: CoordinatorService
    method: RelayFkdRtm
    pace: UpstreamPace
    store: RunStore
    on_event: Callable[[Event], None]
    upstream_run: str
    """Name of the upstream run."""
    name: str
    """The relay's, there."""
    patience_s: float
    """How long the upstream coordinator may be silent before it is given up, in seconds."""


@dataclass(frozen=True)
class Connection:
    """A session that is open."""

    session: Session
    transfer: Transfer


class UpstreamLink:
    """Carries one relay's run along with the upstream run."""

    def __init__(
        self, ends: Ends, open_line: Callable[[], Transport], connection: Connection | None = None
    ) -> None:
        """Nothing is asked yet.

        Args:
            ends: What it joins.
            open_line: Opens a channel to the upstream coordinator; every session has its own.
            connection: The session that learnt of the run, if it was just now.
        """
        self._ends = ends
        self._open_line = open_line
        self._connection = connection
        self._connecting: Session | None = None
        self.failure: FkdError | None = None
        """Why the link has ended, though the run can go on."""
        self._work: pb.Task | None = None
        self._absence: Absence | None = None
        self._answered: PhaseKey | None = None
        """The last task whose answer this process has handed in."""
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._log = structlog.get_logger()
        self._thread = threading.Thread(target=self._run, name="upstream", daemon=True)
        ends.service.on_change(self._changed.set)
        if connection is not None:
            self._say("upstream_connected", run=ends.upstream_run)

    # -- its life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin, on a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        """Leave the upstream run, without insisting, and end the thread."""
        self._stopped.set()
        self._changed.set()
        if self._connecting is not None:
            self._connecting.close(notify=False)
        if self._connection is not None:
            self._connection.session.leave()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    @property
    def over(self) -> bool:
        """Whether there is nothing more to do."""
        return self._stopped.is_set() or self.failure is not None or self._look(lambda run, now: run.over)

    def _run(self) -> None:
        while not self.over:
            try:
                self.step()
            except Exception as error:
                if self._stopped.is_set():
                    return
                self._log.exception("upstream_step_failed", detail=str(error))
                self._stopped.wait(PATIENCE_S)
        if self._connection is not None:
            self._connection.session.leave()

    def step(self) -> None:
        """Do what is due: connect, wait for clients, ask for a task, or look after the task at hand."""
        try:
            with relays_words():
                self._do_what_is_due()
            self._found()
        except UnreachableError as error:
            self._lost(error)
        except RunAbortedError:  # said with a sign of life; how it ended is said with the next poll
            self._drop("the upstream run is over")
        except (SupersededError, RefusedError) as error:
            self._refused(error)
        except (StaleError, TaskClosedError, NotFoundError) as error:
            self._drop(f"the upstream coordinator went on: {error}")
        except UnauthenticatedError as error:
            self._disconnect()  # its signs of life have ended
            self._lost(error)
        except FkdError as error:
            self._lost(error)
        except OSError as error:  # the disk's trouble: tried again
            self._ends.service.disk.say(str(error))
            self._stopped.wait(LOOK_S)

    def _do_what_is_due(self) -> None:
        if self._connection is None:
            self._connect()
        elif self._work is not None:
            self._look_after(self._connection, self._work)
        else:
            self._ask(self._connection)

    # -- steps ------------------------------------------------------------------------------------

    def _connect(self) -> None:
        session = Session(self._open_line(), self._ends.name, PATIENCE_S, announce=False)
        self._connecting = session
        try:
            run = session.register(relay=True)
        except FkdError:
            session.close(notify=False)
            raise
        if run.run_id != self._ends.upstream_run or run.config.sha256() != self._ends.service.config_sha256:
            session.leave()
            raise RefusedError(
                f"it serves run {run.run_id}, this relay's is part of {self._ends.upstream_run} (correct --upstream "
                "or, with another --run-id, take part in that)",
                reason="OTHER_RUN",
            )
        self._connection = Connection(session, Transfer(session, run, self._ends.store.blobs))
        self._connecting = None
        if self._work is not None:
            session.begin(self._work.key)
        self._say("upstream_connected", run=run.run_id)

    def _disconnect(self) -> None:
        """End a session that is not accepted any more; another is opened with the next step."""
        if self._connection is not None:
            self._connection.session.close(notify=False)
            self._connection = None

    def _ask(self, at: Connection) -> None:
        """Poll, once there are enough clients to begin with; polling says "ready"."""
        state, ready, needed, words = self._look(
            lambda run, now: (run.state, len(run.attendance.ready()), run.needed(), _few(run))
        )
        if state is RunState.GATHERING and ready < needed:
            if not at.session.busy:
                at.session.begin(None)
            self._tell(at, ready / needed, words)
            return
        at.session.end()
        self._look(lambda run, now: self._ends.pace.ask())
        told = at.session.next_task()
        if told.HasField("task"):
            self._take(at, told.task)
        elif told.HasField("finished"):
            self._finish(told.finished)
        else:
            self._look(lambda run, now: self._ends.pace.wait(told.wait.reason))
            self._pause(pause_s(told.wait))

    def _take(self, at: Connection, task: pb.Task) -> None:
        """Open a task's phase for the clients, unless they have answered it before."""
        key, ends = _key(task), self._ends
        at.session.begin(task.key)
        if self._look(lambda run, now: run.is_past(key)):
            self._work = task
            self._look_after(at, task)
            return
        blobs = {item.name: self._input(at, item, task.key) for item in task.inputs}

        def take(run: Coordinator, now: float) -> None:
            ends.store.tidy()  # before the inputs are there: it removes what nobody refers to
            ends.method.take(task, blobs)
            left = task.deadline_s - min(MAX_MARGIN_S, MARGIN * task.deadline_s)
            ends.pace.give(key, now + left)

        try:
            self._look(take)
        except DataError as error:
            self._give_up(at, task, str(error))
            return
        self._work = task
        self._say("upstream_task", **_place(key), deadline_s=round(task.deadline_s, 1))
        ends.service.tick()

    def _input(self, at: Connection, item: types.ArtifactRef, key: types.TaskKey) -> bytes:
        blobs, sha256 = self._ends.store.blobs, item.sha256.hex()
        with contextlib.suppress(FkdError, OSError):  # gone meanwhile, or damaged: fetched again
            if blobs.has(sha256):
                return blobs.read(sha256)
        return at.transfer.fetch_once(item, key)

    def _look_after(self, at: Connection, task: pb.Task) -> None:
        """Hand in what the clients have answered, or that there is nothing to hand in; else say how far they are."""
        key, ends = _key(task), self._ends
        self._changed.clear()

        def where(run: Coordinator, now: float) -> tuple[bool, bool, float, str]:
            late = ends.pace.until is not None and now > ends.pace.until and not run.is_open(key)
            answered, asked = len(run.open.uploads) if run.open is not None else 0, len(run.participants)
            words = f"{answered} of {asked} answers in" if run.is_open(key) else _few(run)
            return run.is_past(key), late, answered / max(1, asked), words

        past, late, share, words = self._look(where)
        answer = ends.method.answer_for(key) if past else None
        if answer is not None:
            self._hand_in(task, lambda: answer.send(task.key, at.session, at.transfer, ends.store.blobs))
        elif past or late:
            self._give_up(at, task, self._why_nothing(key) if past else words)
        else:
            self._tell(at, share, words)

    def _tell(self, at: Connection, share: float, words: str) -> None:
        """Let the next sign of life say how far the clients are."""
        at.session.progress(share, words)
        if at.session.unheard:
            raise UnreachableError(at.session.unheard)
        self._pause(LOOK_S)

    def _give_up(self, at: Connection, task: pb.Task, why: str) -> None:
        self._say("upstream_not_answered", **_place(_key(task)), detail=why)
        at.session.report_failure(task.key, f"relay {self._ends.name}: {why}")
        self._drop(why)

    def _why_nothing(self, key: PhaseKey) -> str:
        """Why a phase that was closed here has no answer, without a word of whom it asked."""
        summary = self._ends.store.phase_summary(key)
        if summary is None:
            return "this relay's run is past it"
        skipped = str(summary.get("skipped", "it has no result"))
        return "too few of its clients' uploads may count" if "no aggregate" in skipped else skipped

    def _hand_in(self, task: pb.Task, send: Callable[[], None]) -> None:
        key = _key(task)
        try:
            send()
            self._answered = key
            self._say("upstream_answered", **_place(key))
        except ConflictError as error:  # of an earlier process, whose state is lost: that one counts
            self._log.warning("upstream_has_another_answer", **_place(key), detail=str(error))
        except (UnreachableError, StaleError, SupersededError):
            raise
        except FkdError as error:
            if error.reason in ENDS:
                raise
            self._log.error("upstream_refused", **_place(key), reason=error.reason, detail=str(error))
            self._say("upstream_not_answered", **_place(key), detail=str(error))
        self._end_work()

    # -- how it ends ------------------------------------------------------------------------------

    def _drop(self, why: str) -> None:
        """Go on without the task at hand."""
        if self._work is not None:
            key = _key(self._work)
            self._look(lambda run, now: self._ends.pace.drop(key, why))
        self._end_work()
        self._ends.service.tick()

    def _end_work(self) -> None:
        self._work = None
        if self._connection is not None:
            self._connection.session.end()

    def _finish(self, finished: pb.Finished) -> None:
        """The upstream run is over."""
        if not finished.completed:
            self._ends.service.abort(f"the upstream run was aborted: {finished.detail}")
            return
        self._complete(f"the upstream run is over: {finished.detail}")

    def _complete(self, why: str) -> None:
        def complete(run: Coordinator, now: float) -> None:
            self._ends.method.end()
            self._ends.pace.finish(why)

        self._look(complete)
        self._ends.service.tick()

    def _is_done(self) -> bool:
        """Whether nothing is left of the run but its end: the last personal models are the clients' own affair."""
        last = (
            self._ends.method.config.rounds,
            self._ends.method.phases(self._ends.method.config.rounds)[-1].phase,
        )
        if not self._look(lambda run, now: run.is_past(PhaseKey(*last))):
            return False
        return last[1] == types.PHASE_PERSONAL or self._answered == PhaseKey(*last)

    def _refused(self, error: FkdError) -> None:
        """The upstream coordinator wants no more of this relay, or has nothing more for it."""
        if error.reason not in ENDS and not isinstance(error, SupersededError):
            self._lost(error)
        elif error.reason == "RUN_ABORTED":
            self._ends.service.abort(f"upstream: {error}")
        elif error.reason == "RUN_OVER" or self._is_done():
            self._complete(f"upstream: {error}")
        else:  # another process took this one's place, or --upstream is not the coordinator that it was
            self.failure = RefusedError(
                f"this relay stops and its run is kept; the upstream coordinator at {self._ends.pace.upstream} says: "
                f"{error}",
                reason=error.reason,
            )

    def _lost(self, error: FkdError) -> None:
        """Keep the clients waiting, and say for what; the task at hand stays what it is."""
        if self._stopped.is_set():
            return
        absence = self._absence = self._absence or Absence(self._ends.pace.upstream)
        news = absence.note(error)
        self._say_trouble(absence.words)
        if news:
            self._say("upstream_lost", detail=str(error))
        if absence.silent_s > GONE_S and self._is_done():
            self._complete(f"the upstream coordinator is gone: {error}")
        elif absence.silent_s > self._ends.patience_s:
            self.failure = UnreachableError(
                f"this relay stops and its run is kept: {absence.words}, longer than --upstream-patience-s; the same "
                "command goes on with the run"
            )
        self._stopped.wait(LOOK_S)

    def _found(self) -> None:
        if self._absence is None:
            return
        away_s, self._absence = round(self._absence.seconds, 1), None
        self._say_trouble("")
        self._say("upstream_found", away_s=away_s)

    def _say_trouble(self, words: str) -> None:
        def say(run: Coordinator, now: float) -> None:
            self._ends.pace.trouble = words

        self._look(say)

    # -- how --------------------------------------------------------------------------------------

    def _look(self, question: Callable[[Coordinator, float], _Answer]) -> _Answer:
        return self._ends.service.look(question)

    def _pause(self, seconds: float) -> None:
        """Until something changes at the clients' side, or the link ends."""
        self._changed.wait(seconds)

    def _say(self, name: str, **fields: Json) -> None:
        self._ends.on_event(Event(name, {"upstream": self._ends.pace.upstream, **fields}))


def _few(run: Coordinator) -> str:
    """How many clients there are: their names are nobody's business upstream."""
    words = f"{len(run.attendance.ready())} of {run.needed()} clients ready"
    return f"{words}, and paused" if run.paused_by else words


def _key(task: pb.Task) -> PhaseKey:
    return PhaseKey(task.key.round, task.key.phase)


def _place(key: PhaseKey) -> Mapping[str, Json]:
    return {"round": key.round, "phase": PHASE_NAMES.get(key.phase, "unknown")}
