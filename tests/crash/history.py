"""What a run's recorded history must satisfy, whatever was killed on the way; a small model recomputes the result.

I1 an acknowledged upload is in the aggregate exactly once; I2 a result follows from what was accepted alone;
I3 one result per run, phase and round; I4 no second stage without a first; I5 the ledger's payload is what counted.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fkd_common.config import RunConfig
from fkd_common.method.aggregation import client_weights
from fkd_common.pb import types_pb2 as types

from .scripted_client import samples_of, student_of

PHASES = {value: name.removeprefix("PHASE_").lower() for name, value in types.Phase.items()}


@dataclass(frozen=True)
class Acknowledged:
    """An acknowledgement a client received."""

    client: str
    round: int
    phase: str
    receipt: str
    """The first digits of the upload's digest."""

    @classmethod
    def of(cls, event: dict[str, Any]) -> Acknowledged:
        """From a client's log line."""
        return cls(event["client"], event["round"], event["phase"], event["receipt"])


@dataclass(frozen=True)
class Verdict:
    """What a history shows."""

    acknowledged: int
    lost: list[str]
    """Acknowledged and not in the result of their phase."""
    counted_twice: list[str]
    broken: list[str]
    """Other invariants that do not hold."""

    @property
    def holds(self) -> bool:
        """Whether every invariant does."""
        return not (self.lost or self.counted_twice or self.broken)


def check(folder: Path, acknowledgements: Iterable[Acknowledged]) -> Verdict:
    """Compare what clients were told with what the coordinator's state says it did.

    Args:
        folder: The run's folder, with no coordinator at work in it.
        acknowledgements: Of all clients, in any order.
    """
    with sqlite3.connect(f"file:{folder / 'state.db'}?mode=ro", uri=True) as database:
        uploads = {
            (client, number, PHASES[phase]): (digest, json.loads(content))
            for number, phase, client, digest, content in database.execute(
                "SELECT round, phase, client, digest, content FROM uploads"
            )
        }
        closed = [
            (number, PHASES[phase], json.loads(summary))
            for number, phase, summary in database.execute(
                "SELECT round, phase, summary FROM phases ORDER BY rowid"
            )
        ]
        ledger = {
            (client, number, phase): payload
            for client, number, phase, payload in database.execute(
                "SELECT client, round, phase, payload_up FROM ledger"
            )
        }
    acknowledged = set(acknowledgements)
    counted = Counter(
        (client, number, phase)
        for number, phase, summary in closed
        if "skipped" not in summary
        for client in summary["returned"]
    )
    abandoned = {(number, phase) for number, phase, summary in closed if "skipped" in summary}
    lost, twice, broken = [], [], []
    for ack in acknowledged:
        key = (ack.client, ack.round, ack.phase)
        if not uploads.get(key, ("", {}))[0].startswith(ack.receipt):
            lost.append(f"{ack} is not in the store")
        elif counted[key] == 0 and (ack.round, ack.phase) not in abandoned:
            lost.append(f"{ack} is not in the result")
    twice += [f"{key} counted {times} times" for key, times in counted.items() if times > 1]
    results = Counter((number, phase) for number, phase, _ in closed)
    twice += [f"{key} has {times} results" for key, times in results.items() if times > 1]
    for number, phase, _ in closed:
        if (
            phase in ("residuals", "moments", "refine_1", "votes")
            and (number, "student") not in results
            and number > 0
        ):
            broken.append(f"I4: round {number} has {phase} without a student")
    for key, (_, content) in uploads.items():
        artifact = content.get("artifact")
        expected = artifact["size"] - artifact["payload_offset"] if artifact else 0
        if ledger.get(key, 0) != expected:
            broken.append(
                f"I5: {key} has {ledger.get(key, 0)} bytes of payload in the ledger, expected {expected}"
            )
    return Verdict(len(acknowledged), lost, twice, broken)


def student_expected(
    clients: Iterable[str], round_number: int, config: RunConfig, d: int, num_classes: int
) -> dict[str, np.ndarray]:
    """Eqs. 14-15 over scripted clients: what the average must be, to within rounding."""
    names = sorted(clients)
    sizes = np.array([samples_of(name) for name in names])
    weights = client_weights(sizes, np.full(len(names), 0.5), config.tau_r)
    states = [student_of(name, round_number, config, d, num_classes) for name in names]
    return {
        key: sum(w * state[key].astype(np.float64) for w, state in zip(weights, states, strict=True))
        for key in states[0]
    }
