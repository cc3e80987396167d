"""What a run waits for, or waited for in vain, as a sentence for people; asks the state machine and changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from fkd_server.run_state import MAX_DETAIL, OpenPhase
from fkd_server.standing import Standing

LISTED = 20
"""Names in one sentence: every client that waits is sent it."""


def waiting_for(run: Standing, now: float) -> str:
    """Who or what a run waits for, or how it ended."""
    if run.over:
        return f"run {run.state.value}: {run.detail}"
    elsewhere = run.pace.awaits()
    if run.open is not None:
        text = _for_answers(run, run.open, now)
        text += f"; {elsewhere}" if elsewhere else ""
        return f"{text}; then paused by {run.paused_by}" if run.paused_by else text
    if run.paused_by:
        return f"paused by {run.paused_by}: goes on with `fkd-server resume`"
    if not elsewhere:
        return _for_clients(run)
    return elsewhere if len(run.attendance.ready()) >= run.needed() else f"{_for_clients(run)}; {elsewhere}"


def _for_clients(run: Standing) -> str:
    ready, needed = run.attendance.ready(), run.needed()
    of = f" of {needed}" if len(ready) <= needed else ""
    text = f"{len(ready)}{of} clients ready"
    if ready:
        text += f": {_listed(ready)}"
    busy = [
        f"{c.name} prepares ({c.progress:.0%})" for c in run.attendance.live() if not c.ready and c.activity
    ]
    return "; ".join([text, *busy[:LISTED]])


def _for_answers(run: Standing, phase: OpenPhase, now: float) -> str:
    pending = run.pending(phase)
    there = {*phase.uploads, *phase.failed, *pending}
    text = f"{phase.key}: {len(phase.uploads)} of {len(run.participants)} in"
    gone = [name for name in run.participants if name not in there]
    if pending:
        text += f", waiting for {_listed(pending)}"
    if gone:
        text += f", {_listed(gone)} gone"
    return f"{text}, {max(0.0, phase.deadline - now):.0f} s to the deadline"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


def missed_quorum(phase: OpenPhase, quorum: int, *, at_deadline: bool) -> str:
    """Why a run ends whose phase has too few uploads; all clients are told: who failed, but not in whose words."""
    failed = f"; {', '.join(sorted(phase.failed))} failed" if phase.failed else ""
    when = " at the deadline" if at_deadline else ""
    return f"{phase.key}: {len(phase.uploads)} uploads{when}, quorum {quorum}{failed}"[:MAX_DETAIL]
