"""What callers of the second port may make the coordinator hold, and for how long: numbers, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

MAX_BODY_BYTES = 4 << 10
"""Of a request: only the log-in form has one."""
MAX_LINE_BYTES = 8 << 10
"""Of the request line, and of each header."""
MAX_HEADERS = 64
BACKLOG = 128
"""Connections that the system may hold for us."""


@dataclass(frozen=True)
class WebLimits:
    """For all callers together; times in seconds."""

    connections: int = 128
    """Open at once. Each holds at most one request's head and one answer that its peer has not taken."""
    watchers: int = 50
    """Pages that are told what is new."""
    handshake_s: float = 10.0
    """Longest TLS handshake."""
    idle_s: float = 15.0
    """A connection on which no whole request has come for so long is closed."""
    wrong_guess_s: float = 1.0
    """After a few wrong tokens, the answer to one more takes this long."""
    answer_s: float = 30.0
    """Longest time to make and send an answer; of a stream, to send a message."""
