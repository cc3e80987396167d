"""When a relay's phases open: as the upstream coordinator gives tasks; asked and told under the service's lock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fkd_server.method.federated_method import PhasePlan
from fkd_server.pace import Go, Turn
from fkd_server.run_state import PhaseKey


class UpstreamPace:
    """Opens the phase of the upstream coordinator's task, passes over what came before it, and holds the rest."""

    def __init__(self, upstream: str, phases: Callable[[int], Sequence[PhasePlan]]) -> None:
        """No task is known yet.

        Args:
            upstream: HOST:PORT.
            phases: Those of a round, in order.
        """
        self.upstream = upstream
        self.trouble = ""
        """Why the upstream coordinator cannot be asked; empty while it can."""
        self.until: float | None = None
        """When the task at hand has to be answered, by the coordinator's clock."""
        self._phases = phases
        self._key: PhaseKey | None = None
        self._dropped = ""
        self._over = ""
        self._said = ""
        self._asked = False

    def give(self, key: PhaseKey, until: float) -> None:
        """The upstream coordinator asks for this phase."""
        self._key, self.until, self._dropped, self._said, self._asked = key, until, "", "", False

    def drop(self, key: PhaseKey, why: str) -> None:
        """The task at hand, or one like it from before this process, does not count any more."""
        self._key, self._dropped = key, why

    def ask(self) -> None:
        """The upstream coordinator is asked for a task, and may take its time."""
        self._asked = True

    def wait(self, said: str) -> None:
        """The upstream coordinator has no task now, and says what it waits for."""
        self._said = said

    def finish(self, why: str) -> None:
        """There will be no task any more."""
        self._over = why

    def turn(self, key: PhaseKey) -> Turn:
        """See :meth:`Pace.turn`."""
        if self._over:
            return Turn(Go.SKIP, reason=self._over)
        if self._key is None:
            return Turn(Go.WAIT)
        if key == self._key:
            return Turn(Go.SKIP, reason=self._dropped) if self._dropped else Turn(Go.OPEN, self.until)
        if self._place(key) < self._place(self._key):
            return Turn(Go.SKIP, reason=f"the upstream coordinator is at {self._key}")
        return Turn(Go.WAIT)

    def _place(self, key: PhaseKey) -> tuple[int, int]:
        """Where in the run a phase is."""
        order = [plan.phase for plan in self._phases(key.round)]
        return key.round, order.index(key.phase) if key.phase in order else len(order)

    def may_end(self) -> bool:
        """See :meth:`Pace.may_end`: not before the last answer is handed in, and the upstream run over."""
        return bool(self._over)

    def awaits(self) -> str:
        """See :meth:`Pace.awaits`."""
        if self.trouble:
            return self.trouble
        if self._said:
            return f"the upstream coordinator at {self.upstream} waits: {self._said}"
        return (
            f"the upstream coordinator at {self.upstream} has no task for this relay yet"
            if self._asked
            else ""
        )
