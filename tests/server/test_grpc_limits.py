"""What a real server lets its peers hold: deadlines, one held poll per session, slots that come back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from fkd_client.transport import GrpcTransport
from fkd_common import errors
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.rpc import MAX_CHUNK_BYTES, METHODS
from fkd_server.admission import SlotLimits
from fkd_server.grpc_server import GrpcServer
from fkd_server.limits import MAX_CONTROL_BYTES, Limits

from ..faults.http2 import DATA, END_STREAM, Connection, message
from .tiny import Site, TinyRun, tiny_run

ONE_UPLOAD = Limits(uploads=SlotLimits(slots=1, per_caller=1, transfer_s=60.0, contended_s=60.0))


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path)


@asynccontextmanager
async def serving(run: TinyRun, limits: Limits | None = None) -> AsyncIterator[int]:
    server = GrpcServer(limits=limits)
    port = server.listen("127.0.0.1", 0)
    await server.start(run.service, run.admin)
    try:
        yield port
    finally:
        await server.stop(0.0)


@asynccontextmanager
async def joined(port: int, name: str) -> AsyncIterator[Site]:
    transport = GrpcTransport(f"127.0.0.1:{port}")
    try:
        yield await asyncio.to_thread(
            Site, name, lambda method, request: transport.call(method, request, 30.0)
        )
    finally:
        transport.close()


def test_a_newer_poll_of_a_session_ends_the_older_one_at_once(run: TinyRun) -> None:
    """A client whose connection died polls again; two polls of it would be one client held twice."""

    async def scenario() -> None:
        async with serving(run) as port, joined(port, "a") as a:
            older = asyncio.create_task(asyncio.to_thread(a.poll, 25.0))
            while not run.coordinator.attendance.clients["a"].ready:
                await asyncio.sleep(0.01)
            began = time.monotonic()
            newer = asyncio.create_task(asyncio.to_thread(a.poll, 2.0))
            assert (await older).HasField("wait")
            assert time.monotonic() - began < 1.5
            assert not newer.done()
            assert (await newer).HasField("wait")

    asyncio.run(scenario())


@pytest.mark.parametrize("deadline_s", [None, 3600.0])
def test_a_call_without_a_deadline_or_with_a_long_one_is_refused(
    run: TinyRun, deadline_s: float | None
) -> None:
    """Scenario 23: gRPC holds an answer that nobody takes until its call's deadline, and for good without one."""

    async def scenario() -> None:
        async with serving(run) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = channel.unary_unary(METHODS["Heartbeat"].path)
            with pytest.raises(grpc.aio.AioRpcError, match="deadline of at most 90 s"):
                await stub(b"", timeout=deadline_s)

    asyncio.run(scenario())


def test_a_request_that_carries_no_tensors_is_short(run: TinyRun) -> None:
    async def scenario() -> None:
        async with serving(run) as port, joined(port, "a") as a:
            with pytest.raises(errors.TooLargeError, match="Heartbeat request of"):
                await asyncio.to_thread(a.call, "Heartbeat", activity="x" * (MAX_CONTROL_BYTES + 1))

    asyncio.run(scenario())


@pytest.mark.scenario(23)
def test_a_call_that_never_ends_its_side_is_answered_all_the_same(run: TinyRun) -> None:
    """Scenario 23: stream never half-closed; the first message is the request, whatever may follow."""

    async def scenario() -> None:
        async with serving(run) as port:
            connection = await Connection.open(port)
            request = pb.RegisterRequest(protocol_version=1, client_name="a").SerializeToString()
            connection.send(DATA, 0, connection.call("Register"), message(len(request), request))
            async with asyncio.timeout(10.0):
                while "a" not in run.coordinator.attendance.clients or not connection.resets:
                    await asyncio.sleep(0.01)
            connection.close()

    asyncio.run(scenario())


@pytest.mark.scenario(7, 23)
def test_a_call_that_ends_before_its_message_is_refused(run: TinyRun) -> None:
    async def scenario() -> None:
        async with serving(run) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.stream_unary(METHODS["Heartbeat"].path)(timeout=10.0)
            await call.done_writing()
            with pytest.raises(grpc.aio.AioRpcError, match="ended before its message"):
                await call

    asyncio.run(scenario())


@pytest.mark.scenario(4)
@pytest.mark.parametrize("ending", ["killed", "cancelled"])
def test_a_client_that_dies_in_mid_upload_gives_its_slot_back(run: TinyRun, ending: str) -> None:
    """Scenario 4: there is one slot; the next client's upload is read at once."""

    async def scenario() -> None:
        async with serving(run, ONE_UPLOAD) as port, joined(port, "b") as b:
            dying = await Connection.open(port)
            stream = dying.call("PutChunk")
            dying.send(DATA, 0, stream, message(MAX_CHUNK_BYTES, b"half"))
            await asyncio.sleep(0.1)
            refused = asyncio.create_task(asyncio.to_thread(b.call, "PutChunk", data=b"x", size=1))
            await asyncio.sleep(0.3)
            assert not refused.done()
            if ending == "killed":
                dying.close()
            else:
                dying.send(DATA, END_STREAM, stream)
            began = time.monotonic()
            with pytest.raises(errors.StaleError):  # read, and looked at
                await refused
            assert time.monotonic() - began < 5.0
            dying.close()

    asyncio.run(scenario())
