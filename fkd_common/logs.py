"""One line per event: JSON where a machine reads, short sentences where a person does; never on stdout."""

from __future__ import annotations

import logging
import sys
from enum import StrEnum

import structlog

MAX_LIBRARY_CHARS = 300
"""Longest line of a library: some quote what they were sent."""


class LogFormat(StrEnum):
    """How events are written."""

    AUTO = "auto"
    JSON = "json"
    TEXT = "text"


_CONTEXT: dict[str, str] = {}


def log_context(**fields: str) -> None:
    """Say these with every event from now on, where a machine reads: a process takes part in one run at a time."""
    _CONTEXT.update(fields)


def _with_context(logger: object, method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    return {**_CONTEXT, **event}


def _inert(logger: object, method: str, event: structlog.types.EventDict) -> structlog.types.EventDict:
    """What peers say of themselves and libraries quote is nothing that a terminal obeys."""
    return {
        _visible(key): _visible(value) if isinstance(value, str) else value for key, value in event.items()
    }


def _visible(text: str) -> str:
    if text.isprintable():
        return text
    # Spaces apart, what is not printable is controls, line ends, marks that turn the reading direction, half letters.
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )


def configure_logs(log_format: LogFormat = LogFormat.AUTO) -> None:
    """Send structured events to standard error: text on a terminal, JSON lines otherwise."""
    text = log_format is LogFormat.TEXT or (log_format is LogFormat.AUTO and sys.stderr.isatty())
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=20)
        if text
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if text else "iso", utc=not text),
            _inert if text else _with_context,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


class LibraryLog(logging.Handler):
    """What a library has to say, as lines of our log: no traceback, and never more than a line."""

    def __init__(self, event: str) -> None:
        """Name the lines.

        Args:
            event: Their event.
        """
        super().__init__(logging.WARNING)
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        error = record.exc_info[1] if record.exc_info else None
        detail = f"{record.getMessage()}: {error}" if error else record.getMessage()
        structlog.get_logger().warning(self._event, detail=" ".join(detail.split())[:MAX_LIBRARY_CHARS])
