"""Tells the service manager that started this program how the program is; decides nothing about it.

The protocol is that of sd_notify(3), which systemd promises to keep: one datagram with `NAME=value` lines to the
socket that the environment names. A program that nobody manages tells nobody, at no cost.
"""

from __future__ import annotations

import os
import socket

import structlog

MAX_STATUS_BYTES = 1000
"""systemd drops messages over 4096 bytes whole."""

SEND_TIMEOUT_S = 1.0
"""Longest wait for a service manager that does not read."""


class ServiceManager:
    """What started this program and watches it, or nobody; every method may be called at any time, and again."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """Talk to one socket.

        Args:
            address: Its path, `@` first for an abstract one; empty: there is no service manager.
            watchdog_s: Seconds of silence after which it ends this program; 0: it does not.
        """
        self.watchdog_s = watchdog_s
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._ready = self._stopping = False
        self._status = ""

    @classmethod
    def from_environment(cls) -> ServiceManager:
        """The one that started this process; the processes this one starts will not be told of it."""
        address, pid, microseconds = (
            os.environ.pop(name, "") for name in ("NOTIFY_SOCKET", "WATCHDOG_PID", "WATCHDOG_USEC")
        )
        watched = microseconds.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if watched else 0.0)

    def ready(self) -> None:
        """The program does what it was started for."""
        if not self._ready:
            self._ready = True
            self._tell("READY=1")

    def status(self, text: str) -> None:
        """What the program does, for a person who asks `systemctl status`."""
        # One line: what peers say is part of it, and a second line would be an order to the service manager.
        line = " ".join(text.split()).encode(errors="replace")[:MAX_STATUS_BYTES].decode(errors="ignore")
        if line != self._status:
            self._status = line
            self._tell(f"STATUS={line}")

    def alive(self) -> None:
        """The program gets on; to be called at least once in `watchdog_s`."""
        if self.watchdog_s:
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """The program is about to end."""
        if not self._stopping:
            self._stopping = True
            self._tell("STOPPING=1")

    def _tell(self, message: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.settimeout(SEND_TIMEOUT_S)
                to.connect(self._address)
                to.sendall(message.encode())
        except OSError as error:
            structlog.get_logger().warning("service_manager_unreachable", detail=str(error))
