"""Where time goes, as OpenTelemetry spans, if the environment asks for them; else nothing, at no cost.

A round is one trace in all processes. Nothing is sent along with tasks for that: trace and span numbers of rounds and
phases follow from the run's name, so a coordinator that was restarted goes on with them too. Spans carry names of runs,
phases and clients, and counts; never data, labels or paths.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import structlog

from fkd_common.errors import FkdError
from fkd_common.logs import LibraryLog

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

Attributes = Mapping[str, str | int | float | bool]

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The standard variables that ask for traces."""

FLUSH_MS = 2000
"""Longest wait, at the end, for a collector that does not answer."""


@dataclass(frozen=True)
class Place:
    """A round of a run, or a phase of one."""

    run: str
    round: int
    phase: str = ""

    @property
    def trace(self) -> int:
        """The round's trace, 128 bits, never 0."""
        return _number(f"{self.run}/{self.round}", 16)

    @property
    def span(self) -> int:
        """The span of the round or phase in it, 64 bits, never 0."""
        return _number(f"{self.run}/{self.round}/{self.phase}", 8)

    def attributes(self) -> dict[str, str | int | float | bool]:
        """What a span of this place says."""
        named = {"fkd.phase": self.phase} if self.phase else {}
        return {"fkd.run": self.run, "fkd.round": self.round, **named}


class Tracing:
    """Makes spans and sends them away."""

    def __init__(self, provider: TracerProvider, numbers: Any) -> None:
        """Use :func:`start_tracing`."""
        self._provider = provider
        self._numbers = numbers
        self._tracer: Tracer = provider.get_tracer("fkd", version("fkd"))

    def note(self, name: str, place: Place, seconds: float, attributes: Attributes) -> None:
        """A round or phase is over: the span that everything in it is a child of.

        Args:
            name: Of the span.
            place: Which round or phase.
            seconds: How long it took, until now.
            attributes: What there is to say of it.
        """
        end = time.time_ns()
        above = _context(place, Place(place.run, place.round).span) if place.phase else None
        with self._numbers.given(place.trace, place.span):
            span = self._tracer.start_span(
                name,
                above,
                attributes={**place.attributes(), **attributes},
                start_time=end - round(1e9 * seconds),
            )
        span.end(end)

    def note_part(self, name: str, place: Place, seconds: float) -> None:
        """A part of a phase is over."""
        end = time.time_ns()
        span = self._tracer.start_span(
            name, _context(place, place.span), start_time=end - round(1e9 * seconds)
        )
        span.end(end)

    @contextmanager
    def work(
        self, name: str, place: Place | None = None, attributes: Attributes | None = None
    ) -> Iterator[None]:
        """A span around what this process does.

        Args:
            name: Of the span.
            place: The phase that it is a part of, which another process times; None: a part of the span at work.
            attributes: What there is to say of it.
        """
        from opentelemetry.trace import Status, StatusCode

        above = _context(place, place.span) if place is not None else None
        said = {**(place.attributes() if place is not None else {}), **(attributes or {})}
        with self._tracer.start_as_current_span(
            name, above, attributes=said, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield
            except FkdError as error:  # its reason, and not its words, which may name a file
                span.set_attribute("fkd.reason", error.reason)
                span.set_status(Status(StatusCode.ERROR))
                raise

    def close(self) -> None:
        """Send what there is left, if somebody takes it."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


_tracing: Tracing | None = None


def start_tracing(service: str) -> Tracing | None:
    """Begin to trace, if the environment asks for it and the packages are here.

    Args:
        service: Name of the program, unless OTEL_SERVICE_NAME gives another.
    """
    global _tracing
    endpoint = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if not endpoint or off or os.environ.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return None
    log = structlog.get_logger()
    try:
        _tracing = _open(service)
    except ImportError as error:
        log.warning("traces_unavailable", endpoint=endpoint, detail=f"install fkd[otel] ({error})")
        return None
    log.info("traces", endpoint=endpoint)
    return _tracing


def stop_tracing() -> None:
    """Send what there is left."""
    global _tracing
    if _tracing is not None:
        _tracing.close()
        _tracing = None


def task_span(place: Place, client: str) -> AbstractContextManager[object]:
    """What a client does for a task; nothing without tracing."""
    if _tracing is None:
        return nullcontext()
    return _tracing.work(f"task {place.phase}", place, {"fkd.client": client})


def part_span(name: str) -> AbstractContextManager[object]:
    """A part of a task; nothing without tracing."""
    return nullcontext() if _tracing is None else _tracing.work(name)


def _open(service: str) -> Tracing:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator

    class Numbers(IdGenerator):
        """Random, except where they are given."""

        def __init__(self) -> None:
            self._random = RandomIdGenerator()
            self._given = threading.local()

        @contextmanager
        def given(self, trace: int, span: int) -> Iterator[None]:
            """For the spans of this thread in the block."""
            self._given.numbers = (trace, span)
            try:
                yield
            finally:
                del self._given.numbers

        def generate_trace_id(self) -> int:
            return getattr(self._given, "numbers", (self._random.generate_trace_id(), 0))[0]

        def generate_span_id(self) -> int:
            return getattr(self._given, "numbers", (0, self._random.generate_span_id()))[1]

    words = logging.getLogger("opentelemetry")
    words.handlers, words.propagate = [LibraryLog("traces_not_sent")], False
    numbers = Numbers()
    named = {SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", service), SERVICE_VERSION: version("fkd")}
    provider = TracerProvider(id_generator=numbers, resource=Resource.create(named), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider, numbers)


def _context(place: Place, span: int) -> Context:
    """In which a new span is a child of that one, whoever made it."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    above = SpanContext(place.trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(above))


def _number(name: str, num_bytes: int) -> int:
    digest = hashlib.sha256(f"fkd trace {num_bytes} {name}".encode()).digest()
    return int.from_bytes(digest[:num_bytes]) | 1  # 0 would be none
