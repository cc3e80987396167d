"""A client at work while others attack, and what the coordinator's process uses meanwhile."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tenacity

from fkd_client.transport import GrpcTransport
from fkd_common.errors import UnreachableError
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_CHUNK_BYTES, METHODS, PROTOCOL_VERSION

PATIENCE_S = 60.0
"""How long a call that is not answered is made again and again, as clients do."""

again_and_again = tenacity.Retrying(
    retry=tenacity.retry_if_exception_type(UnreachableError),
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(PATIENCE_S),
    reraise=True,
)


@dataclass
class Latencies:
    """Seconds until calls were answered, by method."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def worst(self) -> float:
        return max(max(each) for each in self.seconds.values())

    def __str__(self) -> str:
        return ", ".join(
            f"{name} {statistics.median(each) * 1e3:.0f} ms (worst {max(each) * 1e3:.0f}, n = {len(each)})"
            for name, each in self.seconds.items()
        )


class Bystander:
    """Registers, takes the student's task, and then polls, beats, downloads and uploads."""

    def __init__(self, address: str, name: str = "bystander") -> None:
        self._transport = GrpcTransport(address)
        told = self.call("Register", protocol_version=PROTOCOL_VERSION, client_name=name)
        self._session = told.session
        self.key = types.TaskKey(run_id=told.run_id, round=1, phase=types.PHASE_STUDENT)
        (self.student,) = self.call("NextTask", wait_s=5.0).task.inputs
        self._first = self._chunk()

    def call(self, name: str, timeout_s: float = 30.0, **fields: Any) -> Any:
        method = METHODS[name]
        if name != "Register":
            fields = {"session": self._session, **fields}
        request = method.request_type(**fields).SerializeToString()
        return method.response_type.FromString(self._transport.call(method, request, timeout_s))

    def work(self, seconds: float) -> Latencies:
        """One of each call, again and again; every one must be answered."""
        latencies = Latencies()
        until = time.monotonic() + seconds
        for turn in self._turns():
            for name, fields in turn.items():
                began = time.monotonic()
                again_and_again(self.call, name, **fields)
                latencies.seconds.setdefault(name, []).append(time.monotonic() - began)
            if time.monotonic() > until:
                return latencies
        raise AssertionError("unreachable")

    def close(self) -> None:
        self._transport.close()

    def _turns(self) -> Iterator[dict[str, dict[str, Any]]]:
        turn = 0
        while True:
            turn += 1
            digest = hashlib.sha256(str(turn).encode()).digest()
            yield {
                "Heartbeat": {"key": self.key, "activity": "student"},
                "NextTask": {"wait_s": 0.0},
                "GetChunk": {"key": self.key, "sha256": self.student.sha256, "length": MAX_CHUNK_BYTES},
                "PutChunk": {
                    "key": self.key,
                    "sha256": digest,
                    "size": self.student.size,
                    "data": self._first,
                },
            }
            time.sleep(0.02)  # a client computes in between

    def _chunk(self) -> bytes:
        data: bytes = self.call(
            "GetChunk", key=self.key, sha256=self.student.sha256, length=MAX_CHUNK_BYTES
        ).data
        return data


@dataclass(frozen=True)
class Memory:
    """Resident memory of a process, in MB."""

    pid: int

    @property
    def now(self) -> float:
        return self._read("VmRSS")

    @property
    def peak(self) -> float:
        """Since :meth:`forget_peak`."""
        return self._read("VmHWM")

    def forget_peak(self) -> None:
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _read(self, name: str) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024
