"""HTTP/2 by hand, as far as misbehaving needs it: frames that no gRPC library would send."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass, field
from typing import Self

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_INITIAL_WINDOW = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame (RFC 9113, section 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header(name: str, value: str) -> bytes:
    """A header field without indexing or compression (RFC 7541, section 6.2.2); both at most 126 bytes."""
    return b"\0" + b"".join(bytes((len(text),)) + text.encode() for text in (name, value))


def request_headers(method: str, deadline_s: int = 30) -> bytes:
    """The header block of a gRPC call to fkd.v1.Coordinator."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": f"/fkd.v1.Coordinator/{method}",
        ":authority": "localhost", "content-type": "application/grpc", "te": "trailers",
        "grpc-timeout": f"{deadline_s}S",
    }  # fmt: skip
    return b"".join(header(name, value) for name, value in fields.items())


def message(size: int, body: bytes = b"") -> bytes:
    """A gRPC message that says how long it is, and as much of it as is given."""
    return struct.pack(">BI", 0, size) + body


@dataclass(eq=False)
class Connection:
    """One connection to a coordinator; what comes back is read, and mostly dropped."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    goaway: bytes = b""
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    resets: int = 0
    _streams: int = -1
    _following: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, port: int, initial_window: int | None = None) -> Self:
        """Connect and greet.

        Args:
            port: Of the coordinator, on loopback.
            initial_window: Bytes the peer may send per stream; the protocol's 65,535 unless given.
        """
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        settings = b"" if initial_window is None else struct.pack(">HI", _INITIAL_WINDOW, initial_window)
        writer.write(_PREFACE + frame(SETTINGS, 0, 0, settings))
        connection = cls(reader, writer)
        connection._following = asyncio.create_task(connection._follow())
        return connection

    def call(self, method: str) -> int:
        """Begin a call: its headers, and nothing else."""
        self._streams += 2
        self.send(HEADERS, END_HEADERS, self._streams, request_headers(method))
        return self._streams

    def send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        """One frame, unless the other end has hung up."""
        if not self.closed.is_set():
            self.writer.write(frame(kind, flags, stream, payload))

    def close(self) -> None:
        """Hang up."""
        self.writer.close()

    async def _follow(self) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await self.reader.readexactly(9)
                payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
                kind, flags = head[3], head[4]
                if kind in (SETTINGS, PING) and not flags & ACK:
                    self.send(kind, ACK, 0, payload if kind == PING else b"")
                elif kind == GOAWAY:
                    self.goaway = payload
                elif kind == RST_STREAM:
                    self.resets += 1
        self.closed.set()
