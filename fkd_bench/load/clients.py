"""A process of no-op clients: real sessions over real connections, one thread each; they compute nothing.

``python -m fkd_bench.load.clients`` reads its orders, one line of JSON, from standard input and writes what its clients
saw, one line of JSON, to standard output once the run is over. It imports neither torch nor lightgbm.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog
from pydantic import TypeAdapter

from fkd_bench.load.method import moved
from fkd_client.run_info import RunInfo, pause_s
from fkd_client.session import Session
from fkd_client.tls import ClientTls
from fkd_client.transfer import TensorMessage, Transfer
from fkd_client.transport import GrpcTransport
from fkd_common.artifacts import BlobStore
from fkd_common.errors import ExitCode, FkdError, RunAbortedError, UnreachableError
from fkd_common.exchange_method import MODEL
from fkd_common.ledger import PHASE_NAMES
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.program import run_program
from fkd_common.rpc import Method
from fkd_common.tensors import Tensors, decode

PATIENCE_S = 60.0
"""A coordinator that does not answer for so long is gone."""
NUM_SAMPLES = 100
"""n_k of every client."""
_SETUP = PHASE_NAMES[types.PHASE_SETUP]


@dataclass(frozen=True)
class Orders:
    """What a process of clients is told."""

    address: str
    """HOST:PORT"""
    clients: Sequence[int]
    """Their numbers; names follow from them."""
    tls: str | None = None
    """Folder with one folder of credentials per client."""


@dataclass(frozen=True)
class Seen:
    """What some clients saw."""

    payload_bytes: int
    """Tensor bytes, both directions, of everything after registration."""
    message_bytes: int
    """Bytes of whole messages, likewise."""
    rpc_ms: Mapping[str, Sequence[float]]
    """How long each attempt at each call took, by method."""


ORDERS, SEEN = TypeAdapter(Orders), TypeAdapter(Seen)


def client_name(number: int) -> str:
    """The id of a client."""
    return f"noop{number}"


class NoOpClient:
    """Does what it is asked, without data: sends every received model back, moved a little."""

    def __init__(self, number: int, transport: _TimedTransport) -> None:
        self.session = Session(transport, client_name(number), PATIENCE_S)
        self._number = number

    def run(self) -> None:
        """Take part in the run from registration to its end.

        Raises:
            FkdError: The coordinator refused this client or went away, or the run was aborted.
        """
        run = self.session.register()
        # In the run's folder, where this process is: nothing is exchanged that lasts longer than a round.
        with tempfile.TemporaryDirectory(dir=".") as unused:
            self._work(run, Transfer(self.session, run, BlobStore(Path(unused))))
        self.session.leave()

    def _work(self, run: RunInfo, transfer: Transfer) -> None:
        while True:
            answer = self.session.next_task()
            if answer.HasField("finished"):
                if not answer.finished.completed:
                    raise RunAbortedError(f"the run was aborted: {answer.finished.detail}")
                return
            if answer.HasField("wait"):
                time.sleep(pause_s(answer.wait))
                continue
            self.session.begin(answer.task.key)
            try:
                self._do(answer.task, transfer)
            finally:
                self.session.end()

    def _do(self, task: pb.Task, transfer: Transfer) -> None:
        received = decode(transfer.fetch(task.inputs[0], task.key))
        transfer.submit(_answer(task, moved(received, self._number)))


def _answer(task: pb.Task, tensors: Tensors) -> TensorMessage:
    """The submission that a task asks for."""
    if task.inputs[0].name == MODEL:
        exchange = pb.SubmitExchangeRequest(key=task.key, num_samples=NUM_SAMPLES)
        return TensorMessage("SubmitExchange", exchange, tensors)
    student = pb.SubmitStudentRequest(key=task.key, num_samples=NUM_SAMPLES, reliability=1.0)
    return TensorMessage("SubmitStudent", student, tensors)


class _TimedTransport(GrpcTransport):
    """Notes how long every attempt at a call takes."""

    def __init__(self, address: str, tls: ClientTls | None) -> None:
        super().__init__(address, tls)
        self.taken_ms: dict[str, list[float]] = defaultdict(list)

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        began = time.perf_counter()
        try:
            return super().call(method, request, timeout_s)
        finally:
            self.taken_ms[method.name].append(round(1e3 * (time.perf_counter() - began), 3))


def work(orders: Orders) -> Seen:
    """Run clients until all have seen the end of the run.

    Raises:
        FkdError: One of them failed; the others are of no use then.
    """
    transports = {number: _TimedTransport(orders.address, _tls(orders, number)) for number in orders.clients}
    clients = [NoOpClient(number, transport) for number, transport in transports.items()]
    ended: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
    for client in clients:
        threading.Thread(target=_run, args=(client, ended), name=client.session.name, daemon=True).start()
    for _ in clients:
        error = ended.get()
        if isinstance(error, UnreachableError):
            raise UnreachableError(f"the coordinator has not answered for {PATIENCE_S:.0f} s: {error}")
        if error is not None:
            raise error
    rows = [row for client in clients for row in client.session.ledger.rows() if row[0].phase != _SETUP]
    rpc_ms: dict[str, list[float]] = defaultdict(list)
    for transport in transports.values():
        for method, taken in transport.taken_ms.items():
            rpc_ms[method] += taken
    return Seen(
        sum(count.payload_up + count.payload_down for _, count in rows),
        sum(count.message_up + count.message_down for _, count in rows),
        dict(rpc_ms),
    )


def _run(client: NoOpClient, ended: queue.SimpleQueue[Exception | None]) -> None:
    try:
        client.run()
        ended.put(None)
    except Exception as error:  # whatever it is, the process must end with it
        ended.put(error)


def _tls(orders: Orders, number: int) -> ClientTls | None:
    return ClientTls(Path(orders.tls) / client_name(number)) if orders.tls else None


def _main() -> int:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    told = sys.stdin.readline()
    if not told:
        raise FkdError("no orders came: the command that started these clients has ended")
    seen: dict[str, Any] = asdict(work(ORDERS.validate_json(told)))
    print(json.dumps(seen))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(run_program("fkd-bench load", "bench", _main))
