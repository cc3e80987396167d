"""Every metric that /metrics serves: name, kind, labels, meaning; no values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a metric moves."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    """What it says, and when it is absent, if ever."""


STATES = ("gathering", "running", "completed", "aborted")
"""Of a run."""
CLIENT_STATES = ("waiting", "working", "answered", "failed", "left", "gone")

_G, _C, _H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM

METRICS: tuple[Metric, ...] = (
    Metric(
        "fkd_ready",
        _G,
        (),
        "1 while the run is served; 0 while it is prepared, its disk refuses, or the program stops",
    ),
    Metric(
        "fkd_run_info",
        _G,
        ("run", "version", "config"),
        "1; the run's name, the release, the configuration's hash",
    ),
    Metric("fkd_run_state", _G, ("state",), "1 for the state the run is in, 0 for the others"),
    Metric("fkd_paused", _G, (), "1 while an operator has paused the run"),
    Metric("fkd_round", _G, (), "the current or last round; -1 before the first"),
    Metric("fkd_rounds_planned", _G, (), "rounds of the whole run"),
    Metric("fkd_rounds_done_total", _C, (), "rounds that have ended, since this process began"),
    Metric("fkd_phase_open", _G, ("phase",), "1 for the open phase; absent between phases"),
    Metric("fkd_phase_participants", _G, (), "clients asked in the open phase; 0 between phases"),
    Metric("fkd_phase_answered", _G, (), "of those, how many have answered"),
    Metric(
        "fkd_deadline_seconds",
        _G,
        (),
        "time until the open phase closes whoever is missing; absent between phases",
    ),
    Metric("fkd_phase_seconds", _H, ("phase",), "how long phases took, since this process began"),
    Metric(
        "fkd_aggregation_seconds",
        _H,
        ("phase",),
        "how long folding a phase's uploads took, since this process began",
    ),
    Metric("fkd_clients", _G, ("state",), "clients that ever registered, by what they are doing"),
    Metric("fkd_clients_needed", _G, (), "clients that the first round waits for"),
    Metric(
        "fkd_client_up",
        _G,
        ("client",),
        "1 while the client shows signs of life, 0 when it is silent, absent once it has left",
    ),
    Metric("fkd_uploads_total", _C, (), "uploads that counted, since this process began"),
    Metric(
        "fkd_missed_tasks_total",
        _C,
        (),
        "tasks failed, or not answered in time, in rounds that have ended since this process began",
    ),
    Metric(
        "fkd_bytes_total",
        _C,
        ("phase", "direction", "kind"),
        "bytes from (up) and to (down) clients since this process began: tensors (payload), whole messages (message)",
    ),
    Metric(
        "fkd_wasted_bytes_total",
        _C,
        (),
        "message bytes, both ways, of refused, repeated or unanswered calls since this process began",
    ),
    Metric(
        "fkd_run_bytes",
        _G,
        ("phase", "direction", "kind"),
        "the same bytes of the whole run, from its ledger",
    ),
    Metric("fkd_run_wasted_bytes", _G, (), "wasted bytes of the whole run, from its ledger"),
    Metric(
        "fkd_run_fedavg_bytes",
        _G,
        (),
        "payload that full-model FedAvg would have cost for the same participations, of the whole run",
    ),
    Metric(
        "fkd_accuracy",
        _G,
        ("candidate",),
        "accuracy on the coordinator's test set after the last round that has one",
    ),
    Metric(
        "fkd_validation_accuracy",
        _G,
        ("candidate",),
        "accuracy on all sites' held-out samples at the last vote, if any",
    ),
    Metric(
        "fkd_rpc_seconds", _H, ("method", "code"), "time to answer or refuse gRPC calls other than NextTask"
    ),
    Metric(
        "fkd_poll_seconds", _H, ("code",), "time that NextTask was held before it was answered or refused"
    ),
    Metric(
        "fkd_rejected_total",
        _C,
        ("reason",),
        "gRPC calls refused, by the reason in the error (all reasons: messages.md)",
    ),
    Metric("fkd_blob_store_bytes", _G, (), "files of models, uploads and artifacts in the run's folder"),
    Metric("fkd_disk_free_bytes", _G, (), "room left on the disk of the run's folder"),
    Metric(
        "fkd_certificate_expiry_timestamp_seconds",
        _G,
        (),
        "when the coordinator's own certificate ends, in seconds since 1970; absent without TLS",
    ),
    Metric("process_cpu_seconds_total", _C, (), "processor time of the coordinator"),
    Metric("process_resident_memory_bytes", _G, (), "memory of the coordinator that is in RAM"),
    Metric("process_virtual_memory_bytes", _G, (), "address space of the coordinator"),
    Metric(
        "process_start_time_seconds",
        _G,
        (),
        "when the process began, in seconds since 1970; absent where /proc/stat is hidden",
    ),
    Metric("process_open_fds", _G, (), "open files and connections"),
    Metric("process_max_fds", _G, (), "how many of those are allowed"),
)
"""In the order in which a person wants to read them."""

BY_NAME = {metric.name: metric for metric in METRICS}
