"""What is counted and timed as it happens: calls and phases; everything else is read when it is asked for."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from fkd_server.run_state import Event
from fkd_server.web.metric_table import BY_NAME

_CALL_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
_POLL_S = (0.1, 1.0, 5.0, 10.0, 20.0, 30.0, 60.0)
_PHASE_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_FOLD_S = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0)

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for every one, which nobody asks for


class Meters:
    """Of one coordinator process; safe to use from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._calls = _histogram("fkd_rpc_seconds", _CALL_S, registry)
        self._polls = _histogram("fkd_poll_seconds", _POLL_S, registry)
        self._phases = _histogram("fkd_phase_seconds", _PHASE_S, registry)
        self._folds = _histogram("fkd_aggregation_seconds", _FOLD_S, registry)
        rejected = BY_NAME["fkd_rejected_total"]
        self._rejected = Counter(rejected.name, rejected.meaning, rejected.labels, registry=registry)
        self._rejected.labels("STORAGE")  # from 0 on: an alert must see even the first one as a rise

    def answered(self, method: str, code: str, reason: str, seconds: float) -> None:
        """A call was answered or refused.

        Args:
            method: Its name, such as "PutChunk".
            code: The gRPC status, such as "OK".
            reason: Why it was refused; empty if it was not.
            seconds: From its arrival to the answer.
        """
        if method == "NextTask":
            self._polls.labels(code).observe(seconds)
        elif method != "Watch":  # held for as long as somebody wants to know
            self._calls.labels(method, code).observe(seconds)
        if reason:
            self._rejected.labels(reason).inc()

    def on_event(self, event: Event) -> None:
        """Something happened in the run."""
        if event.name != "phase_closed":
            return
        phase = str(event.fields["phase"])
        seconds, folding = event.fields["seconds"], event.fields.get("fold_seconds")
        if isinstance(seconds, float):
            self._phases.labels(phase).observe(seconds)
        if isinstance(folding, float):  # absent where too few answered to fold anything
            self._folds.labels(phase).observe(folding)


def _histogram(name: str, buckets: tuple[float, ...], registry: CollectorRegistry) -> Histogram:
    metric = BY_NAME[name]
    return Histogram(name, metric.meaning, metric.labels, buckets=buckets, registry=registry)
