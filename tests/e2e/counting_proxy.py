"""A TCP proxy that counts what passes, in each direction; it neither reads nor changes a byte."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class CountingProxy:
    """Listens on a free port of 127.0.0.1 and passes everything on to another one.

    Attributes:
        address: where to connect to, HOST:PORT.
        up: bytes that came from the connecting side.
        down: bytes that went to it.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.up = self.down = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone would not wake a thread that is blocked on the socket.
        for end in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._open += [near, far]
                for source, sink, direction in ((near, far, "up"), (far, near, "down")):
                    threading.Thread(
                        target=self._pass_on, args=(source, sink, direction), daemon=True
                    ).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                with self._lock:
                    setattr(self, direction, getattr(self, direction) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
