"""Log lines about callers that do what they may not: a few of each at once, then one now and then that counts the rest.

Whoever is refused may come again thousands of times a second; its lines must neither fill the disk nor hide others'.
"""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

AT_ONCE = 3
"""Lines of one event about one address before the next has to wait."""
EVERY_S = 10.0
"""Then one line so often."""
MAX_REMEMBERED = 4096
"""Events and addresses; the longest unheard is forgotten first."""


@dataclass
class _Said:
    left: float
    """Lines that may be written at once."""
    at: float
    unsaid: int = 0


class Complaints:
    """Writes warnings about callers; safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: OrderedDict[tuple[str, str], _Said] = OrderedDict()
        self._lock = threading.Lock()
        self._log = structlog.get_logger()

    def warning(self, event: str, address: str, **fields: Any) -> None:
        """Say it, unless too much has been said of that lately; `more` counts what was not.

        Args:
            event: What happened.
            address: Who did it, without port; empty if that is not known.
            fields: What else the line has.
        """
        with self._lock:
            said = self._of(event, address)
            if said.left < 1.0:
                said.unsaid += 1
                return
            said.left -= 1.0
            unsaid, said.unsaid = said.unsaid, 0
        more = {"more": unsaid} if unsaid else {}
        known = {"address": address} if address else {}
        self._log.warning(event, **fields, **known, **more)

    def _of(self, event: str, address: str) -> _Said:
        """What may be said of it now."""
        key, now = (event, network_of(address)), self._clock()
        said = self._said.setdefault(key, _Said(AT_ONCE, now))
        said.left = min(AT_ONCE, said.left + (now - said.at) / EVERY_S)
        said.at = now
        self._said.move_to_end(key)
        if len(self._said) > MAX_REMEMBERED:
            self._said.popitem(last=False)
        return said


def network_of(address: str) -> str:
    """Who an address belongs to: whoever has one IPv6 address has the 2^64 around it."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.version == 6 else address
