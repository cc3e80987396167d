"""Traces: one follows a round through coordinator and client, as a collector on this machine receives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from fkd_common.errors import ExitCode
from fkd_common.tracing import Place

from .conftest import World
from .programs import Launcher, address_of

pytestmark = pytest.mark.e2e


@dataclass
class Span:
    """What was received of a span."""

    service: str
    name: str
    trace: int
    number: int
    parent: int
    seconds: float
    attributes: dict[str, Any]


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    spans: list[Span] = field(default_factory=list)
    raw: bytes = b""

    def Export(self, request: Any, context: Any) -> Any:
        self.raw += request.SerializeToString()
        for resource in request.resource_spans:
            service = next(
                a.value.string_value for a in resource.resource.attributes if a.key == "service.name"
            )
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.append(
                    Span(
                        service,
                        span.name,
                        int.from_bytes(span.trace_id),
                        int.from_bytes(span.span_id),
                        int.from_bytes(span.parent_span_id),
                        (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        {a.key: getattr(a.value, str(a.value.WhichOneof("value"))) for a in span.attributes},
                    )
                )
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Receives the spans of programs that are started from now on: to be asked for before the launcher."""
    kept = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(kept, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    yield kept
    server.stop(0).wait()


RUN = [
    "--min-clients",
    "1",
    "--rounds",
    "2",
    "--residual-every",
    "2",
    "--personal-every",
    "2",
    "--linger-s",
    "5",
    "--no-correction-at-start",
]


def test_one_trace_follows_a_round_through_both_processes(
    collector: Collector, launch: Launcher, world: World
) -> None:
    kept, server = collector, launch.server(*RUN)
    client = launch.client(world.sites / "a", address_of(server))
    assert client.end() == ExitCode.OK
    assert server.end() == ExitCode.OK
    for number in (1, 2):
        (round_span,) = kept.named(f"round {number}")
        trace = [span for span in kept.spans if span.trace == round_span.trace]
        assert {span.service for span in trace} == {"fkd-server", "fkd-client"}
        assert round_span.trace == Place("run", number).trace
        assert round_span.parent == 0
        phase = next(span for span in trace if span.name == "phase student")
        task = next(span for span in trace if span.name == "task student")
        assert phase.parent == round_span.number
        assert task.parent == phase.number
        parts = {span.name for span in trace if span.parent == task.number}
        assert {"train", "fetch", "upload"} <= parts
        assert next(span for span in trace if span.name == "fold" and span.parent == phase.number)
        assert 0 < phase.seconds <= round_span.seconds
        assert task.seconds > 0  # it learns that its upload counts when the phase has been folded
        assert task.attributes["fkd.client"] == "a"
    assert len({span.trace for span in kept.spans if "fkd.round" in span.attributes}) == 2

    assert kept.named("fit residuals")
    labels = [
        f"fkd.{name}"
        for name in ("run", "round", "phase", "client", "reason", "returned", "missing", "failed")
    ]
    assert {key for span in kept.spans for key in span.attributes} <= set(labels)
    assert str(world.folder).encode() not in kept.raw


def test_a_collector_that_is_not_there_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, world: World, tmp_path: Path
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    launch = Launcher(tmp_path, world.cache, world.prepared)
    try:
        server = launch.server(*RUN)
        client = launch.client(world.sites / "a", address_of(server))
        assert client.end() == ExitCode.OK
        ended = time.monotonic()
        assert server.end() == ExitCode.OK
        assert time.monotonic() - ended < 15.0
        for program in (server, client):
            assert program.wait_for("traces_not_sent")
            assert all(line.startswith("{") for line in program.stderr.splitlines())
    finally:
        launch.stop()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_without_being_asked_nothing_is_traced_nor_imported(variables: dict[str, str]) -> None:
    program = (
        "import sys; from fkd_common.tracing import start_tracing, part_span\n"
        "assert start_tracing('x') is None\n"
        "with part_span('y'): pass\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**own, **variables}, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_without_the_packages_it_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "from fkd_common.logs import configure_logs; configure_logs()\n"
        "from fkd_common.tracing import start_tracing\n"
        "assert start_tracing('x') is None"
    )
    own = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=own, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "fkd[otel]" in json.loads(done.stderr)["detail"]
