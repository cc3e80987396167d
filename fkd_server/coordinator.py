"""The run as a state machine: commands in, events out, time passed in; no gRPC, no SQL, no threads, no clock.

Rounds consist of phases; a phase has participants, a deadline and a quorum. It closes when everyone who is
still alive has answered and the quorum is met, or at its deadline. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from fkd_common.config import MissedQuorum, RunConfig
from fkd_common.errors import ConflictError, FkdError, RefusedError, StaleError, SupersededError
from fkd_common.ledger import PHASE_NAMES
from fkd_server.federated_method import (
    BelowQuorum,
    FederatedMethod,
    Json,
    Participants,
    PhasePlan,
    UploadContent,
)
from fkd_server.run_state import (
    MAX_DETAIL,
    AssignedTask,
    ClientRecord,
    Event,
    MustWait,
    OpenPhase,
    PhaseKey,
    Receipt,
    RunOver,
    RunState,
)


class Coordinator:
    """Drives one run of a federated method over the clients that come."""

    def __init__(self, config: RunConfig, method: FederatedMethod, on_event: Callable[[Event], None]) -> None:
        self.config = config
        self.state = RunState.GATHERING
        self.round = -1
        self.clients: dict[str, ClientRecord] = {}
        self.open: OpenPhase | None = None
        self.detail = ""
        self._method = method
        self._sessions: dict[bytes, str] = {}
        self._emit = on_event
        self._cohort: tuple[str, ...] = ()
        self._plans: list[PhasePlan] = []
        self._record: dict[str, Json] = {}
        self._round_opened = 0.0
        self._accepted: dict[tuple[str, PhaseKey], str] = {}
        self._gathering_since: float | None = None

    # -- commands ---------------------------------------------------------------------------------

    def register(self, name: str, session: bytes, now: float) -> None:
        """Open a session; it supersedes an older one of the same client."""
        if self.over:
            raise RefusedError(f"the run is over: {self.detail}", reason="RUN_OVER")
        again = name in self.clients
        if again:
            self._sessions.pop(self.clients[name].session)
        self._sessions[session] = name
        self.clients[name] = ClientRecord(name, session, now)
        self._emit(Event("client_joined", {"client": name, "again": again, "live": len(self.live())}))

    def client_of(self, session: bytes) -> ClientRecord:
        """The client that holds a session.

        Raises:
            SupersededError: A newer process of the client took over, or the session is of an earlier coordinator.
        """
        name = self._sessions.get(session)
        if name is None:
            raise SupersededError(
                "this session has ended: another process registered under the same name (give one of them another "
                "--name), or the coordinator was restarted"
            )
        return self.clients[name]

    def seen(
        self, session: bytes, now: float, activity: str | None = None, progress: float = 0.0
    ) -> ClientRecord:
        """Note a sign of life."""
        client = self.client_of(session)
        client.last_seen = now
        if activity is not None:
            client.activity, client.progress = activity, progress
        if not client.alive:
            client.alive = True
            self._emit(Event("client_returned", {"client": client.name}))
        return client

    def next_task(self, session: bytes, now: float) -> AssignedTask | MustWait | RunOver:
        """What the client should do now; asking says that it is ready."""
        client = self.seen(session, now, activity="waiting")
        if not client.ready:
            client.ready = True
            self._emit(Event("client_ready", {"client": client.name, "ready": len(self._ready())}))
        self.tick(now)
        if (over := self.outcome()) is not None:
            return over
        phase = self.open
        if phase is None or client.name not in self._pending(phase):
            return MustWait(self.waiting_for(now))
        return AssignedTask(
            phase.key, max(0.0, phase.deadline - now), self._method.task(phase.key.phase, client.name)
        )

    def is_open(self, key: PhaseKey) -> bool:
        """Whether uploads for this key can still count."""
        return self.open is not None and self.open.key == key

    def check_current(self, session: bytes, key: PhaseKey, digest: str) -> Receipt | None:
        """Whether an upload may be looked at; the first receipt if it was accepted before.

        Raises:
            ConflictError: A different upload was accepted for this client and key.
            StaleError: The key's phase is closed, not yet open, or does not ask this client.
        """
        client = self.client_of(session)
        accepted = self._accepted.get((client.name, key))
        if accepted == digest:
            return Receipt(digest, duplicate=True)
        if accepted is not None:
            raise ConflictError(
                f"{client.name} already submitted a different upload for {key}; the first one counts"
            )
        if self.open is None or self.open.key != key:
            at = str(self.open.key) if self.open else self.state.value
            raise StaleError(f"{key} is not open: the run is at {at}")
        if client.name not in self.open.participants:
            raise StaleError(f"{client.name} takes no part in {key}", reason="NOT_ASKED")
        return None

    def submit(
        self, session: bytes, key: PhaseKey, digest: str, content: UploadContent, now: float
    ) -> Receipt:
        """Count a validated upload, exactly once."""
        earlier = self.check_current(session, key, digest)
        if earlier is not None:
            return earlier
        client, phase = self.seen(session, now), self.open
        assert phase is not None
        phase.uploads[client.name] = content
        phase.failed.pop(client.name, None)
        self._accepted[client.name, key] = digest
        self._emit(
            Event(
                "upload_accepted", {"client": client.name, **self._place(key), "seconds": now - phase.opened}
            )
        )
        self.tick(now)
        return Receipt(digest, duplicate=False)

    def fail(self, session: bytes, key: PhaseKey, detail: str, now: float) -> None:
        """A client cannot do its task, or its upload was refused: go on without it."""
        client = self.seen(session, now)
        if self.is_open(key) and self.open is not None and client.name in self._pending(self.open):
            self.open.failed[client.name] = detail
            self._emit(Event("client_failed", {"client": client.name, **self._place(key), "detail": detail}))
            self.tick(now)

    def leave(self, session: bytes, now: float, reason: str = "") -> None:
        """A client goes away on purpose; `reason` names the kind of error, if one made it."""
        client = self.client_of(session)
        client.alive = client.ready = False
        self._emit(Event("client_left", {"client": client.name, "reason": reason or None}))
        self.tick(now)

    def abort(self, detail: str) -> None:
        """End the run without a result."""
        if not self.over:
            self.state, self.detail, self.open = RunState.ABORTED, detail, None
            self._emit(Event("run_aborted", {"round": max(0, self.round), "detail": detail}))

    def tick(self, now: float) -> None:
        """Let time pass: notice silent clients, close phases, open rounds."""
        for client in self.live():
            if now - client.last_seen > self.config.heartbeat_limit_s:
                client.alive = client.ready = False
                silent = round(now - client.last_seen, 1)
                self._emit(Event("client_lost", {"client": client.name, "silent_s": silent}))
        while not self.over and self._advance(now):
            pass

    # -- questions --------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state in (RunState.COMPLETED, RunState.ABORTED)

    def outcome(self) -> RunOver | None:
        """How the run ended, if it has."""
        return RunOver(self.state is RunState.COMPLETED, self.detail) if self.over else None

    def live(self) -> list[ClientRecord]:
        """Clients that show signs of life."""
        return [client for client in self.clients.values() if client.alive]

    def waiting_for(self, now: float) -> str:
        """For a person: who or what the run waits for."""
        if self.over:
            return f"run {self.state.value}: {self.detail}"
        if self.open is None:
            ready, needed = self._ready(), self._needed()
            text = f"{len(ready)} of {needed} clients ready"
            if ready:
                text += f": {', '.join(ready)}"
            busy = [
                f"{c.name} is at {c.activity} {c.progress:.0%}"
                for c in self.live()
                if not c.ready and c.activity
            ]
            return "; ".join([text, *busy])
        pending, phase = self._pending(self.open), self.open
        text = f"{phase.key}: {len(phase.uploads)} of {len(phase.participants)} in"
        gone = [name for name in phase.participants if name not in (*phase.uploads, *phase.failed, *pending)]
        if pending:
            text += f", waiting for {', '.join(pending)}"
        if gone:
            text += f", {', '.join(gone)} gone"
        return f"{text}, {max(0.0, phase.deadline - now):.0f} s to the deadline"

    # -- the machine ------------------------------------------------------------------------------

    def _advance(self, now: float) -> bool:
        """Make one transition if one is due."""
        if self.open is not None:
            return self._close_if_due(self.open, now)
        if self._plans:
            self._open_phase(self._plans.pop(0), now)
            return True
        if self.state is RunState.RUNNING and self._record:
            self._close_round(now)
            return True
        if self.state is RunState.RUNNING and self.round >= self.config.rounds:
            self.state, self.detail = RunState.COMPLETED, f"all {self.config.rounds} rounds done"
            self._emit(Event("run_completed", {"rounds": self.config.rounds}))
            return True
        return self._open_round(now)

    def _needed(self) -> int:
        """Ready clients a round needs: all of min_clients to start, a quorum of them to go on."""
        if self.state is RunState.GATHERING:
            return self.config.min_clients
        return max(1, math.ceil(self.config.quorum * self.config.min_clients))

    def _ready(self) -> list[str]:
        return sorted(client.name for client in self.live() if client.ready)

    def _open_round(self, now: float) -> bool:
        ready = self._ready()
        if len(ready) < self._needed():
            self._gathering_since = now if self._gathering_since is None else self._gathering_since
            waited = now - self._gathering_since
            # Before the first round there is nothing to lose by waiting; later, the run's result is at stake.
            if self.state is RunState.RUNNING and waited > self.config.phase_deadline_s:
                self.abort(f"only {len(ready)} of {self._needed()} clients came back within {waited:.0f} s")
            return False
        self._gathering_since = None
        self.state = RunState.RUNNING
        self.round += 1
        self._plans = list(self._method.phases(self.round))
        if self._plans:
            self._cohort = self._sample_cohort(ready)
            self._round_opened = now
            self._record = {
                "round": self.round,
                "clients": list(ready),
                "cohort": list(self._cohort),
                "phases": {},
            }
            opened: dict[str, Json] = {
                "round": self.round,
                "of": self.config.rounds,
                "cohort": list(self._cohort),
            }
            self._emit(Event("round_opened", opened))
            if len(ready) < self.config.min_clients:
                few: dict[str, Json] = {
                    "round": self.round,
                    "ready": ready,
                    "min_clients": self.config.min_clients,
                }
                self._emit(Event("fewer_clients", few))
        return True

    def _sample_cohort(self, ready: list[str]) -> tuple[str, ...]:
        """S_t: uniform without replacement, the same for equal seed, round and clients."""
        size = max(1, round(self.config.clients_per_round * len(ready)))
        rng = np.random.default_rng([self.config.seed, self.round])
        return tuple(sorted(rng.choice(ready, size=size, replace=False).tolist()))

    def _open_phase(self, plan: PhasePlan, now: float) -> None:
        # The cohort stays as sampled: a member that is away may be back before the deadline.
        asked = (plan.participants is Participants.EVERYONE and self._ready()) or list(self._cohort)
        key = PhaseKey(self.round, plan.phase)
        quorum = max(1, math.ceil(self.config.quorum * len(asked))) if plan.needs_quorum else 0
        self.open = OpenPhase(plan, key, tuple(asked), quorum, now, now + self.config.phase_deadline_s)
        self._emit(Event("phase_opened", {**self._place(key), "participants": list(asked)}))

    def _pending(self, phase: OpenPhase) -> list[str]:
        """Participants that may still answer: not in, not failed, not silent."""
        return [
            name
            for name in phase.participants
            if name not in phase.uploads and name not in phase.failed and self.clients[name].alive
        ]

    def _close_if_due(self, phase: OpenPhase, now: float) -> bool:
        enough = len(phase.uploads) >= phase.quorum
        # A silent client may come back before the deadline; one that reported failure will not.
        hopeless = all(name in phase.uploads or name in phase.failed for name in phase.participants)
        due = now >= phase.deadline
        if not enough and not due and not self._pending(phase) and self._call_stand_ins(phase):
            return True
        if enough and (due or not self._pending(phase)):
            self._close_phase(phase, now)
        elif not due and not hopeless:
            return False
        elif phase.plan.below_quorum is BelowQuorum.SKIP:
            self._method.discard(phase.uploads)
            self._note_phase(phase, now, {"skipped": f"{len(phase.uploads)} uploads, quorum {phase.quorum}"})
        elif self.config.on_missed_quorum is MissedQuorum.EXTEND and not (phase.extended or hopeless):
            phase.extended, phase.deadline = True, now + self.config.phase_deadline_s
            self._emit(
                Event("phase_extended", {**self._place(phase.key), "waiting_for": self.waiting_for(now)})
            )
        else:
            reasons = "".join(f"; {name}: {detail}" for name, detail in sorted(phase.failed.items()))
            when = " at the deadline" if due else ""
            self.abort(
                f"{phase.key}: {len(phase.uploads)} uploads{when}, quorum {phase.quorum}{reasons}"[
                    :MAX_DETAIL
                ]
            )
        return True

    def _call_stand_ins(self, phase: OpenPhase) -> bool:
        """Ask ready clients outside the cohort in place of participants that are gone; False if there are none."""
        absent = [name for name in phase.participants if name not in phase.uploads]
        stand_ins = [name for name in self._ready() if name not in phase.participants][: len(absent)]
        if not stand_ins:
            return False
        phase.participants = tuple(sorted((*phase.participants, *stand_ins)))
        self._emit(
            Event("stand_ins_called", {**self._place(phase.key), "for": absent, "stand_ins": stand_ins})
        )
        return True

    def _close_phase(self, phase: OpenPhase, now: float) -> None:
        uploads = {name: phase.uploads[name] for name in sorted(phase.uploads)}
        try:
            outcome = self._method.close(phase.key.phase, uploads)
        except ValueError as error:
            if phase.plan.below_quorum is BelowQuorum.FOLLOW_POLICY:
                self.abort(f"{phase.key} has no aggregate: {error}")
                return
            self._method.discard(phase.uploads)
            outcome = {"skipped": f"no aggregate: {error}"}
        except FkdError as error:
            self.abort(f"{phase.key} cannot be closed: {error}")
            return
        self._note_phase(phase, now, outcome)

    def _note_phase(self, phase: OpenPhase, now: float, outcome: dict[str, Json]) -> None:
        self.open = None
        summary: dict[str, Json] = {
            "returned": sorted(phase.uploads),
            "missing": sorted(set(phase.participants) - set(phase.uploads)),
            "failed": dict(phase.failed),
            "seconds": round(now - phase.opened, 3),
            **outcome,
        }
        phases = self._record["phases"]
        assert isinstance(phases, dict)
        phases[PHASE_NAMES[phase.key.phase]] = summary
        self._emit(Event("phase_closed", {**self._place(phase.key), **summary}))

    def _close_round(self, now: float) -> None:
        self._record["seconds"] = round(now - self._round_opened, 3)
        record, self._record = self._record, {}
        self._emit(Event("round_closed", record))

    def _place(self, key: PhaseKey) -> dict[str, Json]:
        return {"round": key.round, "phase": PHASE_NAMES[key.phase]}
