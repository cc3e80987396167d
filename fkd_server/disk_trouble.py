"""A disk of our own that refuses: said every so often, remembered for a while, told to whoever asked; no I/O here."""

from __future__ import annotations

import math
from collections.abc import Callable

import structlog

from fkd_common.errors import UnreachableError

SAY_DISK_S = 10.0
"""A disk that keeps refusing is mentioned this often."""

DISK_FORGIVEN_S = 15.0
"""A disk that has refused nothing for so long is taken to work: what it refuses is tried again oftener."""


class DiskTrouble:
    """What is known of the disk that a run's folder is on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said = -SAY_DISK_S
        self._refused = -math.inf

    def say(self, detail: str) -> None:
        """It has refused: a line in the log, unless there was one lately."""
        self._refused = self._clock()
        if self._clock() - self._said >= SAY_DISK_S:
            self._said = self._clock()
            structlog.get_logger().error("disk_refuses", detail=detail, retrying=True)

    def lately(self) -> bool:
        """Whether it has lately not taken or given data."""
        return self._clock() - self._refused < DISK_FORGIVEN_S


def storage_error(error: OSError, consequence: str = "") -> UnreachableError:
    """What a caller is told of a disk that refuses: nothing of where it is.

    Args:
        error: What the disk said.
        consequence: Of that for the caller, such as ", so nothing has changed".
    """
    return UnreachableError(
        f"the coordinator's disk does not take or give data{consequence}: {error.strerror or error}",
        reason="STORAGE",
    )
