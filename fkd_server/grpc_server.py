"""gRPC to the service and back: long polls, status codes, graceful stop; no state, no arithmetic."""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc_status import rpc_status

from fkd_common.errors import FkdError, PortInUseError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.rpc import MAX_MESSAGE_BYTES, MAX_POLL_S, METHODS, Method, to_status
from fkd_server.service import CoordinatorService

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Clients ping every 30 s while a call is open; anything much faster is a flood.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # A client has a poll, a heartbeat and a transfer at work; more is a flood.
    ("grpc.max_concurrent_streams", 16),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Two coordinators on one port would split the clients between them.
    ("grpc.so_reuseport", 0),
]


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Routes every method of the protocol to one coroutine; messages stay bytes."""

    def __init__(self, server: GrpcServer) -> None:
        self._handlers = {
            method.path: grpc.unary_unary_rpc_method_handler(self._bind(server, method))
            for method in METHODS.values()
        }

    @staticmethod
    def _bind(server: GrpcServer, method: Method):  # type: ignore[no-untyped-def]  # grpc's handler types are sync only
        async def answer(raw: bytes, context: Any) -> bytes:
            return await server.answer(method, raw, context)

        return answer

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


class GrpcServer:
    """An asyncio gRPC server around a :class:`CoordinatorService`.

    The port is bound before there is a service to answer on it, so that a taken port is noticed before the
    minutes that preparing a run may take.
    """

    def __init__(self, heartbeat_s: float) -> None:
        self._service: CoordinatorService | None = None
        self._heartbeat_s = heartbeat_s
        self._changed = asyncio.Event()
        # One worker: the service is serial anyway, and the event loop stays free for polls.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordinator")
        self._server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=4096)
        self._server.add_generic_rpc_handlers((_Handlers(self),))

    def listen(self, host: str, port: int) -> int:
        """Bind in plain text; returns the port (port 0: a free one).

        Raises:
            PortInUseError: The address cannot be bound.
        """
        try:
            # A bare IPv6 address would read its last group as the port.
            bound = self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            bound = 0
        if not bound:
            raise PortInUseError(
                f"cannot listen on {host}:{port}: the port is taken or not allowed; choose another with --port"
            )
        return bound

    async def start(self, service: CoordinatorService) -> None:
        """Begin to answer calls with this service."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake)

        self._service = service
        service.on_change(wake)
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish, then stop."""
        self._wake()
        await self._server.stop(grace_s)
        self._worker.shutdown()

    async def tick(self) -> None:
        """Let the run notice the time."""
        assert self._service is not None
        await asyncio.get_running_loop().run_in_executor(self._worker, self._service.tick)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, method: Method, raw: bytes, context: Any) -> bytes:
        """One call: hold it while there is only waiting to report, and turn errors into status."""
        assert self._service is not None
        until = time.monotonic() + (_poll_seconds(raw) if method.name == "NextTask" else 0.0)
        loop = asyncio.get_running_loop()
        try:
            while True:
                changed = self._changed
                left = until - time.monotonic()
                handle = partial(self._service.handle, method, raw, hold=left > 0)
                answer = await loop.run_in_executor(self._worker, handle)
                if answer is not None:
                    return answer
                # Asking again every heartbeat keeps a client that waits in an open poll alive.
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), min(left, self._heartbeat_s))
        except FkdError as error:
            await context.abort_with_status(rpc_status.to_status(to_status(error)))
            raise AssertionError("unreachable") from error


def _poll_seconds(raw: bytes) -> float:
    """How long a poll asks to be held, capped; a malformed request is refused by the service."""
    try:
        return min(pb.NextTaskRequest.FromString(raw).wait_s, MAX_POLL_S)
    except Exception:  # protobuf raises several types here; the service names the error
        return 0.0
