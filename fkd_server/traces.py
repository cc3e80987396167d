"""Turns the run's events into spans; see ``fkd_common.tracing``."""

from __future__ import annotations

from collections.abc import Mapping, Sized

from fkd_common.tracing import Place, Tracing
from fkd_server.run_state import Event


class RoundTraces:
    """A span for every round and phase that ends, and one for folding the phase's uploads."""

    def __init__(self, tracing: Tracing, run_id: str) -> None:
        self._tracing = tracing
        self._run_id = run_id

    def on_event(self, event: Event) -> None:
        """Note one event."""
        fields = event.fields
        seconds, number = fields.get("seconds"), fields.get("round")
        if event.name not in ("phase_closed", "round_closed"):
            return
        assert isinstance(seconds, float)
        assert isinstance(number, int)
        if event.name == "round_closed":
            self._tracing.note(f"round {number}", Place(self._run_id, number), seconds, {})
            return
        place = Place(self._run_id, number, str(fields["phase"]))
        counts = {f"fkd.{name}": _size(fields.get(name)) for name in ("returned", "missing", "failed")}
        self._tracing.note(f"phase {place.phase}", place, seconds, counts)
        folding = fields.get("fold_seconds")
        if isinstance(folding, float):
            self._tracing.note_part("fold", place, folding)


def _size(of: object) -> int:
    return len(of) if isinstance(of, Sized | Mapping) else 0
