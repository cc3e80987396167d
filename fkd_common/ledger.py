"""The byte ledger: payload and message bytes by client, round, phase and direction; counts only, no I/O.

*Payload* bytes are tensor data (and nothing else); *message* bytes are whole serialised protobuf messages.
Both programs keep one, booking each call once from the bytes they actually sent and received, so the two
sides can be compared line by line. "Up" is always client to coordinator.
"""

from __future__ import annotations

import csv
import io
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass, fields

from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES


def _turn(phase: int) -> tuple[int, int]:
    """When in a round a phase comes: moments are refined before the votes, whatever their numbers."""
    return (types.PHASE_MOMENTS, phase) if phase in REFINE_PHASES else (phase, 0)


PHASE_NAMES: dict[int, str] = {
    value: types.Phase.Name(value).removeprefix("PHASE_").lower()
    for value in sorted(types.Phase.values(), key=_turn)
    if value
}
"""In the order in which a round has them."""


@dataclass(frozen=True, order=True)
class LedgerKey:
    """What bytes are booked under."""

    client: str
    round: int
    phase: str


@dataclass
class ByteCount:
    """Bytes of some calls; `wasted` are message bytes, both ways, of refused, repeated or unanswered calls."""

    calls: int = 0
    payload_up: int = 0
    payload_down: int = 0
    message_up: int = 0
    message_down: int = 0
    wasted: int = 0

    def add(self, other: ByteCount) -> None:
        """Add another count to this one."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def __neg__(self) -> ByteCount:
        """What takes this count back when it is added."""
        return ByteCount(*(-value for value in astuple(self)))


class Ledger:
    """A thread-safe sum of byte counts per :class:`LedgerKey`."""

    def __init__(self) -> None:
        self._rows: dict[LedgerKey, ByteCount] = defaultdict(ByteCount)
        # Sums at hand: a long run has very many rows, and who looks on asks for them again and again.
        self._by_client: dict[str, ByteCount] = defaultdict(ByteCount)
        self._by_phase: dict[str, ByteCount] = defaultdict(ByteCount)
        self._sorted: list[LedgerKey] = []
        """The rows' keys as they were when rows were last asked for; rows come and never go."""
        self._changed: set[LedgerKey] = set()
        self._lock = threading.Lock()

    def book(self, key: LedgerKey, count: ByteCount) -> None:
        """Add one call's bytes."""
        with self._lock:
            for sum_ in (self._rows[key], self._by_client[key.client], self._by_phase[key.phase]):
                sum_.add(count)
            self._changed.add(key)

    def changed(self) -> list[tuple[LedgerKey, ByteCount]]:
        """Rows booked on since they were last :meth:`saved`."""
        with self._lock:
            return [(key, ByteCount(*astuple(self._rows[key]))) for key in self._changed]

    def saved(self, rows: Iterable[tuple[LedgerKey, ByteCount]]) -> None:
        """These rows are kept elsewhere as they were; what has been booked on them since is not."""
        with self._lock:
            self._changed -= {key for key, count in rows if self._rows[key] == count}

    def rows(self, first: int = 0, most: int | None = None) -> list[tuple[LedgerKey, ByteCount]]:
        """Rows sorted by client, round and phase: all, or at most so many from the one at that place on."""
        with self._lock:
            if len(self._sorted) != len(self._rows):
                self._sorted = sorted(self._rows)
            keys = self._sorted[first:] if most is None else self._sorted[first : first + most]
            return [(key, ByteCount(*astuple(self._rows[key]))) for key in keys]

    def total(self, where: Callable[[LedgerKey], bool] = lambda key: True) -> ByteCount:
        """Sum of the rows whose key satisfies `where`."""
        result = ByteCount()
        for key, count in self.rows():
            if where(key):
                result.add(count)
        return result

    def sums(self) -> tuple[dict[str, ByteCount], dict[str, ByteCount]]:
        """Sums per client, calls of nobody known under the empty name, and the same per phase, of one moment."""
        with self._lock:
            by_client, by_phase = (
                {name: ByteCount(*astuple(count)) for name, count in sums.items()}
                for sums in (self._by_client, self._by_phase)
            )
        return by_client, {name: by_phase[name] for name in PHASE_NAMES.values() if name in by_phase}

    def by_phase(self) -> dict[str, ByteCount]:
        """Sums per phase, in the order of the protocol."""
        return self.sums()[1]

    def to_csv(self) -> str:
        """The ledger as CSV text with a header line."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([field.name for field in (*fields(LedgerKey), *fields(ByteCount))])
        for key, count in self.rows():
            writer.writerow([*astuple(key), *astuple(count)])
        return out.getvalue()
