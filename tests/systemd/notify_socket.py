"""The other end of sd_notify: a datagram socket that keeps what a program says; judges nothing."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Message:
    """One datagram, and when it came."""

    text: str
    at: float


class NotifySocket:
    """What a service manager would hear."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.heard: list[Message] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)

    @classmethod
    def in_folder(cls, folder: Path) -> NotifySocket:
        return cls(str(folder / "notify"))

    @property
    def texts(self) -> list[str]:
        return [message.text for message in self.heard]

    def wait_for(self, beginning: str, *, within_s: float = PATIENCE_S) -> Message:
        """The next message that begins so.

        Raises:
            TimeoutError: None came.
        """
        until = time.monotonic() + within_s
        while (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            message = Message(self._socket.recv(4096).decode(), time.monotonic())
            self.heard.append(message)
            if message.text.startswith(beginning):
                return message
        raise TimeoutError(f"no {beginning}, only {self.texts}")

    def drain(self) -> None:
        """Hear what has been said already."""
        self._socket.setblocking(False)
        try:
            while True:
                self.heard.append(Message(self._socket.recv(4096).decode(), time.monotonic()))
        except BlockingIOError:
            return

    def close(self) -> None:
        self._socket.close()
