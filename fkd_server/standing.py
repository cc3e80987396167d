"""Where a run stands, for whoever asks; changes nothing."""

from __future__ import annotations

from fkd_common.config import RunConfig
from fkd_server.attendance import Attendance
from fkd_server.cohort import quorum_of
from fkd_server.pace import Pace
from fkd_server.run_state import OpenPhase, PhaseKey, Position, RunOver, RunState


class Standing:
    """What can be asked of a run."""

    def __init__(self, config: RunConfig, attendance: Attendance, pace: Pace) -> None:
        """Before the first round.

        Args:
            config: What is run.
            attendance: Who is there.
            pace: Says when phases open.
        """
        self.config = config
        self.attendance = attendance
        self.pace = pace
        self.open: OpenPhase | None = None
        self._at = Position()

    @property
    def state(self) -> RunState:
        """Whether the run gathers clients, runs or has ended."""
        return self._at.state

    @property
    def detail(self) -> str:
        """How the run ended."""
        return self._at.detail

    @property
    def round(self) -> int:
        """The round at work; -1 before the first."""
        return self._at.round

    @property
    def paused_by(self) -> str:
        """The operator that paused the run; empty if nobody has."""
        return self._at.paused_by

    @property
    def participants(self) -> tuple[str, ...]:
        """Who is asked in the open phase."""
        return self._at.open.participants if self._at.open is not None else ()

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state in (RunState.COMPLETED, RunState.ABORTED)

    def outcome(self) -> RunOver | None:
        """How the run ended, if it has."""
        return RunOver(self.state is RunState.COMPLETED, self.detail) if self.over else None

    def is_open(self, key: PhaseKey) -> bool:
        """Whether uploads for this key can still count."""
        return self.open is not None and self.open.key == key

    def is_past(self, key: PhaseKey) -> bool:
        """Whether the phase was closed or passed over: it cannot open any more."""
        if key.round != self.round:
            return key.round < self.round
        return key.phase not in self._at.to_come and not self.is_open(key)

    def needed(self) -> int:
        """Ready clients a round needs: all of min_clients to start, a quorum of them to go on."""
        if self.state is RunState.GATHERING:
            return self.config.min_clients
        return quorum_of(self.config, self.config.min_clients)

    def pending(self, phase: OpenPhase) -> list[str]:
        """Participants that may still answer: not in, not failed, not silent."""
        return [name for name in self.participants if self.may_answer(name, phase)]

    def is_awaited(self, phase: OpenPhase) -> bool:
        """Whether anybody may still answer."""
        return any(self.may_answer(name, phase) for name in self.participants)

    def may_answer(self, name: str, phase: OpenPhase) -> bool:
        """Whether a participant may still answer."""
        return name not in phase.uploads and name not in phase.failed and self.attendance.is_alive(name)
