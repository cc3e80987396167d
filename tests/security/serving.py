"""Coordinators over TLS on loopback, and clients that talk to them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from fkd_client.tls import ClientTls
from fkd_client.transport import GrpcTransport
from fkd_common.errors import FkdError
from fkd_common.rpc import METHODS, PROTOCOL_VERSION, Method
from fkd_server.access.enrolment import EnrolmentServer
from fkd_server.access.tls import ServerTls
from fkd_server.grpc_server import GrpcServer
from tests.server.tiny import Site, TinyRun

PATIENCE_S = 20.0


@contextmanager
def _in_a_thread(begin: Callable[[], Any]) -> Iterator[int]:
    """Run a server in its own event loop; `begin` starts it and returns its port and its way to stop."""
    ready, stop = threading.Event(), threading.Event()
    port: list[int] = []

    async def live() -> None:
        bound, end = await begin()
        port.append(bound)
        ready.set()
        await asyncio.to_thread(stop.wait)
        await end()

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="server")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield port[0]
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@contextmanager
def serving(run: TinyRun, tls: ServerTls | None, port: int = 0) -> Iterator[str]:
    """Serve a run; yields HOST:PORT."""

    async def begin() -> tuple[int, Callable[[], Any]]:
        server = GrpcServer()
        bound = server.listen("127.0.0.1", port, tls)
        await server.start(run.service, run.admin)
        return bound, lambda: server.stop(0.0)

    with _in_a_thread(begin) as bound:
        yield f"127.0.0.1:{bound}"


@contextmanager
def preparing(activity: str) -> Iterator[str]:
    """A coordinator that has no run to serve yet; yields HOST:PORT."""

    async def begin() -> tuple[int, Callable[[], Any]]:
        server = GrpcServer()
        bound = server.listen("127.0.0.1", 0)
        await server.start_preparing(lambda: activity)
        return bound, lambda: server.stop(0.0)

    with _in_a_thread(begin) as bound:
        yield f"127.0.0.1:{bound}"


@contextmanager
def enrolling(tls: ServerTls) -> Iterator[int]:
    """Serve join tokens; yields the port."""

    async def begin() -> tuple[int, Callable[[], Any]]:
        server = EnrolmentServer(tls)
        port = server.listen("127.0.0.1", 0)
        await server.start()
        return port, server.stop

    with _in_a_thread(begin) as port:
        yield port


@contextmanager
def connected(address: str, tls: ClientTls | None) -> Iterator[GrpcTransport]:
    """A client's transport."""
    transport = GrpcTransport(address, tls)
    try:
        yield transport
    finally:
        transport.close()


def site(transport: GrpcTransport, name: str = "") -> Site:
    """A client that registers; without a name, as whom its certificate names."""
    return Site(name, lambda method, request: transport.call(method, request, 10.0))


def register(transport: GrpcTransport, name: str = "") -> str:
    """Register; the run's name."""
    return str(site(transport, name).told.run_id)


def refused(address: str, tls: ClientTls | None, name: str = "") -> FkdError:
    """How registering fails."""
    with connected(address, tls) as transport, pytest.raises(FkdError) as error:
        register(transport, name)
    return error.value


def raw_call(
    address: str, credentials: grpc.ChannelCredentials, method: Method, request: bytes, **options: Any
) -> tuple[grpc.StatusCode, str]:
    """One call with grpc alone, for what our own client never does; the status it ends in."""
    with grpc.secure_channel(address, credentials, options.pop("options", None)) as channel:
        stub = channel.unary_unary(method.path, request_serializer=None, response_deserializer=None)
        try:
            stub(request, timeout=10.0, **options)
        except grpc.RpcError as error:
            call: Any = error
            return call.code(), call.details()
        return grpc.StatusCode.OK, ""


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.01)


def registration(name: str = "") -> bytes:
    """A serialised Register request."""
    method = METHODS["Register"]
    return method.request_type(protocol_version=PROTOCOL_VERSION, client_name=name).SerializeToString()
