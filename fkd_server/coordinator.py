"""The run as a state machine: commands in, events out, time passed in; no gRPC, no SQL, no threads, no clock.

Rounds consist of phases; a phase has participants, a deadline and a quorum. It closes when everyone who is
still alive has answered and the quorum is met, or at its deadline. Times are seconds of a monotonic clock.

Where the run stands is one immutable :class:`Position`. A step is made durable by the journal first and made in
memory after, so that a coordinator that dies, or whose disk refuses, goes on from exactly the last step.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fkd_common.choices import MissedQuorum
from fkd_common.config import RunConfig
from fkd_common.errors import ConflictError, DamagedFileError, FkdError, MethodError, RefusedError, StaleError
from fkd_common.failpoints import during, failpoint
from fkd_common.ledger import PHASE_NAMES
from fkd_server.attendance import Attendance
from fkd_server.cohort import asked_in, quorum_of, sample_cohort, stand_ins_for
from fkd_server.method.federated_method import (
    BelowQuorum,
    FederatedMethod,
    Json,
    PhasePlan,
    UploadContent,
)
from fkd_server.pace import AtOnce, Go, Pace, Turn
from fkd_server.run_state import (
    AssignedTask,
    ClosedPhase,
    Event,
    Journal,
    KnownClient,
    MustWait,
    OpenPhase,
    PhaseAtWork,
    PhaseKey,
    Position,
    Receipt,
    RunOver,
    RunState,
)
from fkd_server.standing import Standing
from fkd_server.waiting import missed_quorum, waiting_for

RETRY_S = 0.4
"""A phase whose closing the disk refused is not folded again before this."""

LOOK_S = 0.05
"""A poll that brings no news does not look again at every client before this."""

WAITING = "waiting"
"""What a client does that polls for a task."""


class Coordinator(Standing):
    """Drives one run of a federated method over the clients that come."""

    def __init__(
        self,
        config: RunConfig,
        method: FederatedMethod,
        journal: Journal,
        on_event: Callable[[Event], None],
        stopwatch: Callable[[], float] = lambda: 0.0,
        pace: Pace | None = None,
    ) -> None:
        """Start before the first round.

        Args:
            config: What to run.
            method: What phases mean.
            journal: Makes every step durable.
            on_event: Told of everything that happens.
            stopwatch: Seconds, to say how long folding takes; decides nothing.
            pace: Says when phases open; without one they open one after another.
        """
        super().__init__(
            config,
            Attendance(config.heartbeat_s, config.heartbeat_limit_s, journal, on_event),
            AtOnce() if pace is None else pace,
        )
        self._method = method
        self._journal = journal
        self._emit = on_event
        self._stopwatch = stopwatch
        self._round_opened = 0.0
        self._gathering_since: float | None = None
        self._looked_at: float | None = None
        """When time was last let pass; None if something has happened since."""
        self._held_since: float | None = None
        """Since when a pause, or the pace, has kept the round's next phase from opening."""

    def resume(
        self,
        at: Position,
        clients: Iterable[KnownClient],
        uploads: Mapping[str, UploadContent],
        now: float,
    ) -> None:
        """Go on where an earlier process stopped: same round, same phase, nothing asked twice.

        Clients get twice the usual time to show a sign of life, and the phase its whole deadline anew.

        Args:
            at: Where the run stood.
            clients: Who had registered; their sessions stay valid.
            uploads: What was accepted for the open phase.
            now: The time.
        """
        self._at = at
        if at.method:
            self._method.restore(at.method)
        self.attendance.resume(clients, now)
        self._round_opened = now
        if at.open is not None:
            self.open = self._phase_at_work(at.round, self._plan(at.round, at.open.phase), now)
            self.open.uploads.update(uploads)
            during(PHASE_NAMES[at.open.phase])
        resumed: dict[str, Json] = {"state": at.state.value, "round": max(0, at.round)}
        self._emit(Event("run_resumed", {**resumed, "waiting_for": self.waiting_for(now)}))

    # -- commands ---------------------------------------------------------------------------------

    def register(self, name: str, session: bytes, now: float, *, relay: bool = False) -> None:
        """Open a session; it supersedes an older one of the same client."""
        if self.over:
            self.attendance.told(name)
            completed = self.state is RunState.COMPLETED
            raise RefusedError(
                f"the run is over: {self.detail}", reason="RUN_OVER" if completed else "RUN_ABORTED"
            )
        self.attendance.register(name, session, now, self.participants, relay=relay)

    def next_task(
        self, session: bytes, now: float, *, told_why: bool = True
    ) -> AssignedTask | MustWait | RunOver:
        """What the client should do now; asking says that it is ready.

        Args:
            session: The client's.
            now: The time.
            told_why: Whether a reason to wait will be read; with many clients it takes long to say.
        """
        client = self.attendance.client_of(session)
        news = not (client.alive and client.ready)
        self.attendance.seen(session, now, activity=WAITING)
        self.attendance.asks_for_work(client)
        if news or self._looked_at is None or not 0 <= now - self._looked_at < LOOK_S:
            self.tick(now)
        if (over := self.outcome()) is not None:
            self.attendance.told(client.name)
            return over
        phase = self.open
        if phase is None or not (client.name in self.participants and self.may_answer(client.name, phase)):
            return MustWait(self.waiting_for(now) if told_why else "")
        return AssignedTask(
            phase.key, max(0.0, phase.deadline - now), self._method.task(phase.key.phase, client.name)
        )

    def check_current(self, session: bytes, key: PhaseKey, digest: str) -> Receipt | None:
        """Whether an upload may be looked at; the first receipt if it was accepted before.

        Raises:
            ConflictError: A different upload was accepted for this client and key.
            StaleError: The key's phase is closed, not yet open, or does not ask this client.
        """
        client = self.attendance.client_of(session)
        accepted = self._journal.digest_of(client.name, key)
        if accepted == digest:
            return Receipt(digest, duplicate=True)
        if accepted is not None:
            raise ConflictError(
                f"{client.name} already submitted a different upload for {key}; the first one counts"
            )
        if self.open is None or self.open.key != key:
            at = str(self.open.key) if self.open else self.state.value
            raise StaleError(f"{key} is not open: the run is at {at}")
        if client.name not in self.participants:
            raise StaleError(f"{client.name} takes no part in {key}", reason="NOT_ASKED")
        return None

    def submit(
        self, session: bytes, key: PhaseKey, digest: str, content: UploadContent, now: float
    ) -> Receipt:
        """Count a validated upload, exactly once; the next :meth:`tick` may close the phase."""
        earlier = self.check_current(session, key, digest)
        if earlier is not None:
            return earlier
        client, phase = self.attendance.seen(session, now), self.open
        assert phase is not None
        self._journal.upload_accepted(key, client.name, digest, content)
        client.contributed, self._looked_at = True, None
        phase.uploads[client.name] = content
        phase.failed.pop(client.name, None)
        self._emit(
            Event(
                "upload_accepted", {"client": client.name, **self._place(key), "seconds": now - phase.opened}
            )
        )
        return Receipt(digest, duplicate=False)

    def fail(self, session: bytes, key: PhaseKey, detail: str, now: float) -> None:
        """A client cannot do its task, or its upload was refused: go on without it."""
        client = self.attendance.seen(session, now)
        if self.is_open(key) and self.open is not None and client.name in self.pending(self.open):
            self.open.failed[client.name] = detail
            self._emit(Event("client_failed", {"client": client.name, **self._place(key), "detail": detail}))
            self.tick(now)

    def leave(self, session: bytes, now: float, reason: str = "") -> None:
        """A client goes away on purpose; `reason` names the kind of error, if one made it."""
        self.attendance.leave(session, reason)
        self.tick(now)

    def abort(self, detail: str) -> None:
        """End the run without a result."""
        if not self.over:
            self._move(
                replace(self._at, state=RunState.ABORTED, detail=detail, open=None, to_come=(), paused_by="")
            )
            self._emit(Event("run_aborted", {"round": max(0, self.round), "detail": detail}))

    def pause(self, who: str) -> None:
        """Open no further phase until :meth:`unpause`; the open one ends as it would have.

        Args:
            who: The operator, for the people who wait.
        """
        if not self.over and not self._at.paused_by:
            self._move(replace(self._at, paused_by=who))
            self._emit(Event("run_paused", {"round": max(0, self.round), "by": who}))

    def unpause(self, who: str) -> None:
        """Go on with a paused run."""
        if not self.over and self._at.paused_by:
            self._move(replace(self._at, paused_by=""))
            self._gathering_since = self._looked_at = None
            self._emit(Event("pause_ended", {"round": max(0, self.round), "by": who}))

    def tick(self, now: float) -> None:
        """Let time pass: notice silent clients, close phases, open rounds."""
        self._looked_at = now
        self.attendance.notice_silence(now)
        while not self.over and self._advance(now):
            pass

    def was_asleep(self, seconds: float) -> None:
        """This process was stopped, or waited for its disk: neither clients nor the open phase lose that time."""
        self.attendance.forgive(seconds)
        if self.open is not None:
            self.open.deadline += seconds
        self._emit(Event("was_asleep", {"seconds": round(seconds, 1)}))

    def waiting_for(self, now: float) -> str:
        """For a person: who or what the run waits for."""
        return waiting_for(self, now)

    # -- the machine ------------------------------------------------------------------------------

    def _move(
        self,
        to: Position,
        *,
        opens: OpenPhase | None = None,
        closed: ClosedPhase | None = None,
        round_record: Mapping[str, Json] | None = None,
    ) -> None:
        """Make a step, in which a phase may open: durably first, then in memory; see :meth:`Journal.moved`.

        Raises:
            OSError: The disk does not take it; the run stands where it stood.
        """
        to = replace(to, method=self._method.snapshot())
        self._journal.moved(to, self._method.in_use(), closed=closed, round_record=round_record)
        self._at = to
        if opens is not None:
            self.open = opens
        elif to.open is None:
            self.open = None

    def _advance(self, now: float) -> bool:
        """Make one transition if one is due."""
        at = self._at
        if self.open is not None:
            return self._close_if_due(self.open, now)
        if at.to_come:
            return self._go_on(at, now)
        if at.state is RunState.RUNNING and at.round >= self.config.rounds:
            if not self.pace.may_end():
                return False
            detail = f"all {self.config.rounds} rounds done"
            self._move(replace(at, state=RunState.COMPLETED, detail=detail, paused_by=""))
            self._emit(Event("run_completed", {"rounds": self.config.rounds}))
            return True
        return not at.paused_by and self._open_round(now)

    def _turn(self, at: Position) -> Turn:
        """Whether it is the turn of the first of the phases to come."""
        return self.pace.turn(PhaseKey(at.round, at.to_come[0]))

    def _go_on(self, at: Position, now: float) -> bool:
        """Open the round's next phase, or pass it over, when it may."""
        turn = self._turn(at)
        if at.paused_by or turn.go is Go.WAIT:
            self._held_since = now if self._held_since is None else self._held_since
            return False
        if self._held_since is not None:  # a pause is no time of the round's
            self._round_opened += now - self._held_since
            self._held_since = None
        self._step(replace(at, to_come=at.to_come[1:]) if turn.go is Go.SKIP else at, now)
        return True

    def _open_round(self, now: float) -> bool:
        number, turn = self.round + 1, Turn()
        to_come = tuple(plan.phase for plan in self._method.phases(number))
        while to_come and (turn := self.pace.turn(PhaseKey(number, to_come[0]))).go is Go.SKIP:
            to_come = to_come[1:]
        if turn.go is Go.WAIT:
            return False
        if turn.go is Go.SKIP:  # all of it
            self._move(replace(self._at, state=RunState.RUNNING, round=number, cohort=()))
            return True
        ready, needed = self.attendance.ready(), self.needed()
        if len(ready) < needed:
            self._gathering_since = now if self._gathering_since is None else self._gathering_since
            waited = now - self._gathering_since
            # Before the first round there is nothing to lose by waiting; later, the run's result is at stake. Who
            # sets the pace goes on without this run.
            if (
                self.state is RunState.RUNNING
                and waited > self.config.phase_deadline_s
                and turn.until is None
            ):
                self.abort(f"only {len(ready)} of {needed} clients came back within {waited:.0f} s")
            return False
        self._gathering_since = None
        cohort = sample_cohort(self.config, ready, number) if to_come else ()
        record: dict[str, Json] = {"round": number, "clients": ready, "cohort": cohort, "phases": {}}
        at = replace(self._at, state=RunState.RUNNING, round=number, cohort=cohort, to_come=to_come)
        if not to_come:
            self._move(at)
            return True
        to, opens = self._opening(replace(at, record=record), now)
        self._move(to, opens=opens)
        self._round_opened = now
        self._emit(Event("round_opened", {"round": number, "of": self.config.rounds, "cohort": list(cohort)}))
        if len(ready) < self.config.min_clients:
            few: dict[str, Json] = {"ready": ready, "min_clients": self.config.min_clients}
            self._emit(Event("fewer_clients", {"round": number, **few}))
        self._tell_opened(opens)
        return True

    def _opening(self, at: Position, now: float) -> tuple[Position, OpenPhase]:
        """Where the run stands once the first of the phases to come is open, and that phase; changes nothing."""
        phase = at.to_come[0]
        plan = self._plan(at.round, phase)
        asked = asked_in(plan, at, self.attendance.ready(), self._method)
        quorum = max(quorum_of(self.config, len(asked)), self._method.needed(phase))
        work = PhaseAtWork(phase, asked, quorum if plan.needs_quorum else 0)
        return replace(at, to_come=at.to_come[1:], open=work), self._phase_at_work(at.round, plan, now)

    def _tell_opened(self, phase: OpenPhase) -> None:
        during(PHASE_NAMES[phase.key.phase])
        participants: list[Json] = list(self.participants)
        self._emit(Event("phase_opened", {**self._place(phase.key), "participants": participants}))
        failpoint("phase.opened")

    def _plan(self, round_number: int, phase: int) -> PhasePlan:
        return next(plan for plan in self._method.phases(round_number) if plan.phase == phase)

    def _phase_at_work(self, round_number: int, plan: PhasePlan, now: float) -> OpenPhase:
        return OpenPhase(plan, PhaseKey(round_number, plan.phase), now, now + self.config.phase_deadline_s)

    def _at_work(self) -> PhaseAtWork:
        assert self._at.open is not None
        return self._at.open

    def _close_if_due(self, phase: OpenPhase, now: float) -> bool:
        if now < phase.retry_at:
            return False
        turn = self.pace.turn(phase.key)
        if turn.go is Go.SKIP:
            self._end_phase(phase, now, {"skipped": turn.reason})
            return True
        if turn.until is not None:
            phase.deadline = min(phase.deadline, turn.until)
        due = now >= phase.deadline
        if not due and self.is_awaited(phase):
            return False
        work = self._at_work()
        enough = len(phase.uploads) >= work.quorum
        # A silent client may come back before the deadline; one that reported failure will not.
        hopeless = all(name in phase.uploads or name in phase.failed for name in work.participants)
        few = len(self._counting(phase)) < self.config.min_cohort  # in spite of uploads, no result
        if (few or not enough) and not due and not self.pending(phase) and self._call_stand_ins(phase):
            return True
        if enough and (due or not self.pending(phase)):
            self._close_phase(phase, now)
        elif not due and not hopeless:
            return False
        elif phase.plan.below_quorum is BelowQuorum.SKIP:
            self._end_phase(phase, now, {"skipped": f"{len(phase.uploads)} uploads, quorum {work.quorum}"})
        elif self.config.on_missed_quorum is MissedQuorum.EXTEND and not (work.extended or hopeless):
            self._move(replace(self._at, open=replace(work, extended=True)))
            phase.deadline = now + self.config.phase_deadline_s
            self._emit(
                Event("phase_extended", {**self._place(phase.key), "waiting_for": self.waiting_for(now)})
            )
        else:
            self.abort(missed_quorum(phase, work.quorum, at_deadline=due))
        return True

    def _counting(self, phase: OpenPhase) -> list[str]:
        """Who sent something that can enter the phase's result."""
        number = phase.key.phase
        return [name for name, content in phase.uploads.items() if self._method.can_count(number, content)]

    def _call_stand_ins(self, phase: OpenPhase) -> bool:
        """Ask ready clients outside the cohort in place of participants without result; False if there are none."""
        work = self._at_work()
        absent, stand_ins = stand_ins_for(phase.plan, work, self._counting(phase), self.attendance.ready())
        if not stand_ins:
            return False
        participants = tuple(sorted((*work.participants, *stand_ins)))
        self._move(replace(self._at, open=replace(work, participants=participants)))
        self._emit(
            Event("stand_ins_called", {**self._place(phase.key), "for": absent, "stand_ins": stand_ins})
        )
        return True

    def _close_phase(self, phase: OpenPhase, now: float) -> None:
        """Fold the phase's uploads; if that fails or cannot be made durable, it is as if it had not been tried."""
        before, at = self._method.snapshot(), self._at
        failpoint("phase.closing")
        try:
            outcome = self._fold(phase, before)
            if outcome is not None:
                self._end_phase(phase, now, outcome)
        except (OSError, MethodError):
            if self._at is at:
                self._method.restore(before)
                phase.retry_at = now + RETRY_S
            raise

    def _fold(self, phase: OpenPhase, before: Mapping[str, Json]) -> Mapping[str, Json] | None:
        """What the phase's record says of its result; None if the run was aborted for want of one."""
        uploads, started = {name: phase.uploads[name] for name in sorted(phase.uploads)}, self._stopwatch()
        try:
            outcome = self._method.close(phase.key.phase, uploads)
            failpoint("phase.folded")
            return {**outcome, "fold_seconds": round(self._stopwatch() - started, 4)}
        except DamagedFileError as error:  # a file of ours: the disk's trouble, not the run's
            raise OSError(errno.EIO, str(error)) from error
        except ValueError as error:
            self._method.restore(before)
            if phase.plan.below_quorum is BelowQuorum.SKIP:
                return {"skipped": f"no aggregate: {error}"}
            why = f"has no aggregate: {error}"
        except MethodError:
            raise
        except FkdError as error:
            self._method.restore(before)
            why = f"cannot be closed: {error}"
        self.abort(f"{phase.key} {why}")
        return None

    def _end_phase(self, phase: OpenPhase, now: float, outcome: Mapping[str, Json]) -> None:
        """Make one step of a phase's end and what follows at once: the next phase, or the end of the round."""
        summary: dict[str, Json] = {
            "returned": sorted(phase.uploads),
            "missing": sorted(set(self.participants) - set(phase.uploads)),
            "failed": dict(phase.failed),
            "seconds": round(now - phase.opened, 3),
            **outcome,
        }
        phases = {**self._at.record["phases"], PHASE_NAMES[phase.key.phase]: summary}
        to = replace(self._at, open=None, record={**self._at.record, "phases": phases})
        self._step(to, now, ClosedPhase(phase.key, summary))

    def _step(self, to: Position, now: float, closed: ClosedPhase | None = None) -> None:
        """Make a step, and with it what follows at once: the next phase, or the end of the round."""
        opens, record = None, None
        if not to.to_come:
            record = {**to.record, "seconds": round(now - self._round_opened, 3)}
            to = replace(to, record={})
        elif not to.paused_by and self._turn(to).go is Go.OPEN:
            to, opens = self._opening(to, now)
        self._move(to, opens=opens, closed=closed, round_record=record)
        if closed is not None:
            self._emit(Event("phase_closed", {**self._place(closed.key), **closed.summary}))
            failpoint("phase.closed")
        if record is not None:
            self._emit(Event("round_closed", record))
        if opens is not None:
            self._tell_opened(opens)

    def _place(self, key: PhaseKey) -> dict[str, Json]:
        return {"round": key.round, "phase": PHASE_NAMES[key.phase]}
