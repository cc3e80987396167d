"""What /metrics reads from the run when it is asked; counts nothing itself."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from fkd_common.ledger import PHASE_NAMES
from fkd_common.pb import admin_pb2 as pb
from fkd_server.overview import Overview
from fkd_server.web.metric_table import BY_NAME, CLIENT_STATES, STATES, Kind

Series = Mapping[tuple[str, ...], float]
"""Values by label values."""

_SCORED_ROUNDS = 20
"""Among the last so many rounds the last accuracy is looked for: evaluations may lag."""

_VERSIONS = re.compile(r"version=\d+\.\d+\.\d+(?=\s*[;,]|\s*$)")
"""What a scraper may say of a format; anything else would be taken for a number, and repeated to it."""


class RunCollector(Collector):
    """Reads a run; in whatever thread asks."""

    def __init__(
        self, overview: Overview, folder: Path, certificate_ends: Callable[[], datetime] | None
    ) -> None:
        """Read what the run has counted up to now, which this process does not count again.

        Args:
            overview: Where the run stands.
            folder: Its files.
            certificate_ends: When the coordinator's certificate does; None without TLS.
        """
        self._overview = overview
        self._folder = folder
        self._certificate_ends = certificate_ends
        self._counters = _Counters(_counted(overview.status()))

    def collect(self) -> Iterable[Family]:
        """All metrics of the run, as one moment has them."""
        status = self._overview.status()
        found = {
            **_of_run(status),
            **_of_clients(status),
            **_of_bytes(status),
            **self._counters.since(_counted(status)),
            **self._of_disk(),
            **self._of_models(status),
        }
        if self._certificate_ends is not None:
            found["fkd_certificate_expiry_timestamp_seconds"] = {(): self._certificate_ends().timestamp()}
        return [_family(name, series) for name, series in found.items()]

    def _of_disk(self) -> dict[str, Series]:
        free = os.statvfs(self._folder)
        return {
            "fkd_blob_store_bytes": {(): sum(_sizes(self._folder / name for name in ("blobs", "uploads")))},
            "fkd_disk_free_bytes": {(): free.f_bavail * free.f_frsize},
        }

    def _of_models(self, status: pb.StatusResponse) -> dict[str, Series]:
        accuracy: Mapping[str, float] = {}
        validation: Mapping[str, float] = {}
        for each in self._overview.all_rounds(max(0, status.round - _SCORED_ROUNDS)):
            accuracy, validation = each.accuracy or accuracy, each.validation or validation
        return {"fkd_accuracy": _labelled(accuracy), "fkd_validation_accuracy": _labelled(validation)}


class _Counters:
    """What has been counted since this process began; never less than it was.

    A run's own sums go on after a restart, and after `kill -9`, or a copy put back, from less than was seen: to
    Prometheus a counter that falls has begun anew, and it would add the whole run once more.
    """

    def __init__(self, before: Mapping[str, Series]) -> None:
        self._before = before
        self._most: dict[tuple[str, tuple[str, ...]], float] = {}
        self._lock = threading.Lock()

    def since(self, now: Mapping[str, Series]) -> dict[str, Series]:
        """Of the run's sums as they are now, what is this process's."""
        with self._lock:
            return {
                name: {labels: self._rise(name, labels, value) for labels, value in series.items()}
                for name, series in now.items()
            }

    def _rise(self, name: str, labels: tuple[str, ...], value: float) -> float:
        most = max(self._most.get((name, labels), 0.0), value - self._before[name].get(labels, 0.0))
        self._most[name, labels] = most
        return most


def encoder_for(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """The format that is asked for; the plain one where that is none."""
    if _VERSIONS.sub("", accept).count("version"):
        accept = ""
    return choose_encoder(accept)


class ReadyCollector(Collector):
    """Tells whether there is a run to read."""

    def __init__(self, unready: Callable[[], str]) -> None:
        self._unready = unready

    def collect(self) -> Iterable[Family]:
        """One metric."""
        return [_family("fkd_ready", {(): float(not self._unready())})]


def watch_process(registry: CollectorRegistry, unready: Callable[[], str]) -> None:
    """What there is to tell of a coordinator before it has a run."""
    ProcessCollector(registry=registry)
    registry.register(ReadyCollector(unready))


def _of_run(status: pb.StatusResponse) -> dict[str, Series]:
    found: dict[str, Series] = {
        "fkd_run_info": {(status.run_id, status.version, status.config_sha256[:12]): 1.0},
        "fkd_run_state": {(state,): float(state == status.state) for state in STATES},
        "fkd_paused": {(): float(status.paused)},
        "fkd_round": {(): status.round},
        "fkd_rounds_planned": {(): status.rounds},
        "fkd_phase_open": {(status.phase,): 1.0} if status.phase else {},
        "fkd_phase_participants": {(): len(status.participants)},
        "fkd_phase_answered": {(): len(status.answered)},
        "fkd_deadline_seconds": {(): status.deadline_s} if status.HasField("deadline_s") else {},
    }
    return found


def _of_clients(status: pb.StatusResponse) -> dict[str, Series]:
    states = [client.state for client in status.clients]
    return {
        "fkd_clients": {(state,): states.count(state) for state in CLIENT_STATES},
        "fkd_clients_needed": {(): status.min_clients},
        "fkd_client_up": {
            (client.name,): float(client.alive) for client in status.clients if client.state != "left"
        },
    }


def _of_bytes(status: pb.StatusResponse) -> dict[str, Series]:
    return {
        "fkd_run_bytes": _by_phase(status),
        "fkd_run_wasted_bytes": {(): status.bytes.wasted},
        "fkd_run_fedavg_bytes": {(): status.fedavg_bytes},
    }


def _counted(status: pb.StatusResponse) -> dict[str, Series]:
    """What the run has counted since it began."""
    return {
        "fkd_rounds_done_total": {(): status.rounds_done},
        "fkd_uploads_total": {(): sum(client.uploads for client in status.clients)},
        "fkd_missed_tasks_total": {(): sum(client.missed for client in status.clients)},
        "fkd_bytes_total": _by_phase(status),
        "fkd_wasted_bytes_total": {(): status.bytes.wasted},
    }


def _by_phase(status: pb.StatusResponse) -> Series:
    return {
        (phase, direction, kind): getattr(status.bytes_by_phase[phase], f"{kind}_{direction}")
        for phase in PHASE_NAMES.values()
        if phase in status.bytes_by_phase
        for direction in ("up", "down")
        for kind in ("payload", "message")
    }


def _labelled(values: Mapping[str, float]) -> Series:
    return {(name,): value for name, value in sorted(values.items())}


def _family(name: str, series: Series) -> Family:
    metric = BY_NAME[name]
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(name, metric.meaning, labels=metric.labels)
    for labels, value in series.items():
        family.add_metric(labels, value)
    return family


def _sizes(folders: Iterable[Path]) -> Iterator[int]:
    """Of the files that are there; a run that is over removes some folders, and a run at work files."""
    for folder in folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    yield entry.stat().st_size
