"""The list of certificates that no longer count: one serial number per line; who asks is decided elsewhere.

gRPC checks no revocation lists, so the coordinator looks every caller up here, on every call. The file may be
written by `fkd-server certs revoke`, by hand, or by another program; it is read again when it changes.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import structlog

from fkd_common.access.certificates import Stamp, stamp_of
from fkd_common.errors import DataError, UnauthenticatedError, UsageError

REVOKED_FILE = "revoked"


class RevokedList:
    """Revoked serial numbers of a folder; a list that never was is an empty one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / REVOKED_FILE
        self._stamp: Stamp | None = None
        self._serials: frozenset[int] | None = frozenset()

    def __contains__(self, serial: int) -> bool:
        """Whether a certificate is revoked.

        Raises:
            UnauthenticatedError: The list was never readable, so that nobody can be let in.
        """
        self._refresh()
        if self._serials is None:
            raise UnauthenticatedError(
                f"the coordinator cannot read its list of revoked certificates: mend {self._path.name} there",
                reason="REVOCATION_UNKNOWN",
            )
        return serial in self._serials

    def check(self) -> None:
        """See that a coordinator can read the list as it is on the disk.

        Raises:
            DataError: It cannot; what is added to it now would not count.
        """
        try:
            _parse(self._path.read_text())
        except FileNotFoundError:
            return
        except ValueError as error:
            raise DataError(
                f"{self._path} cannot be read ({error}), so that nothing more can be revoked: expected one "
                "hexadecimal serial number per line; mend the file"
            ) from error

    def add(self, serial: int, why: str) -> None:
        """Revoke one certificate, for good; it is on the disk when this returns.

        Raises:
            DataError: The list cannot be read, so that a coordinator would not notice.
        """
        self.check()
        line = f"{serial:x}  # {why}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC\n"
        with self._path.open("a") as file:
            text = self._path.read_text()
            # A line written by hand may lack its end: two numbers run together would be neither.
            file.write(line if not text or text.endswith("\n") else f"\n{line}")
            file.flush()
            os.fsync(file.fileno())

    def _refresh(self) -> None:
        """Read the list if it changed. One that vanished, or holds nonsense, takes back no revocation."""
        try:
            stamp = stamp_of([self._path])
        except UsageError:
            return
        if stamp == self._stamp:
            return
        first, self._stamp = self._stamp is None, stamp
        try:
            self._serials = _parse(self._path.read_text())
        except (OSError, ValueError) as error:
            structlog.get_logger().error("revoked_list_unreadable", file=str(self._path), detail=str(error))
            if first:
                self._serials = None


def _parse(text: str) -> frozenset[int]:
    """Serial numbers, hexadecimal, one per line; `#` begins a comment.

    Raises:
        ValueError: A line is no number.
    """
    words = (line.partition("#")[0].strip().replace(":", "") for line in text.splitlines())
    return frozenset(int(word, 16) for word in words if word)
