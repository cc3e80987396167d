"""One call at work: who calls, and what its bytes are booked under; counts only."""

from __future__ import annotations

from dataclasses import dataclass

from fkd_common.ledger import PHASE_NAMES, ByteCount, LedgerKey
from fkd_common.pb import types_pb2 as types


@dataclass
class Call:
    """Filled in as the call is understood."""

    client: str = ""
    round: int = 0
    phase: int = types.PHASE_CONTROL
    message_up: int = 0
    payload_up: int = 0
    payload_down: int = 0
    duplicate: bool = False
    booked: bool = False
    """Its bytes are in the ledger already."""

    def count(self, message_down: int) -> ByteCount:
        """What the call costs with an answer of so many bytes."""
        wasted = self.message_up + message_down if self.duplicate else 0
        return ByteCount(1, self.payload_up, self.payload_down, self.message_up, message_down, wasted)

    def place(self) -> LedgerKey:
        """What it is booked under; a phase that there is not counts as control."""
        phase = self.phase if self.phase in PHASE_NAMES else types.PHASE_CONTROL
        return LedgerKey(self.client, self.round, PHASE_NAMES[phase])
