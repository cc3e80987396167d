"""Since when an upstream coordinator has not answered, and the words for it; asks nobody."""

from __future__ import annotations

import time
from datetime import datetime

from fkd_common.errors import FkdError, UnreachableError
from fkd_common.printable import printable
from fkd_common.rpc import PREPARING

MAX_WORDS = 200
"""Of an upstream coordinator's: a relay's words hold those of the one above it, and so on."""


class Absence:
    """A time in which the upstream coordinator does not answer, has nothing to serve yet, or refuses for now."""

    def __init__(self, upstream: str) -> None:
        """It begins now.

        Args:
            upstream: HOST:PORT.
        """
        self._upstream = upstream
        self._began = self._silent_since = time.monotonic()
        self._kind = ""
        self.words = ""
        """For a person: what is the matter, and since when."""

    @property
    def seconds(self) -> float:
        """How long it has been."""
        return time.monotonic() - self._began

    @property
    def silent_s(self) -> float:
        """How long nothing has come that promises an end: a coordinator that is preparing does."""
        return 0.0 if self._kind == PREPARING else time.monotonic() - self._silent_since

    def note(self, error: FkdError) -> bool:
        """Another call failed.

        Returns:
            Whether the matter is another than before.
        """
        said = printable(str(error), MAX_WORDS)
        if error.reason == PREPARING:
            self._silent_since = time.monotonic()
            kind, what = PREPARING, f"says: {said}"
        elif isinstance(error, UnreachableError):
            kind, what = UnreachableError.reason, "does not answer"
        else:
            kind, what = error.reason, f"refuses this relay ({said})"
        news, self._kind = kind != self._kind, kind
        if news:
            self._since = f"{datetime.now().astimezone():%H:%M:%S}"
        since = "" if kind == PREPARING else f" since {self._since}"
        self.words = f"the upstream coordinator at {self._upstream} {what}{since}"
        return news
