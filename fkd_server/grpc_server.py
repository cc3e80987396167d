"""gRPC to the service and back: long polls, limits on what peers may hold, graceful stop; no state, no arithmetic.

Clients make unary calls; here they are streams of one message, which look the same on the wire. So a handler runs
before its request is read, and decides when: until then gRPC holds no more of it than one small window.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc_status import rpc_status

from fkd_common.errors import (
    BusyError,
    FkdError,
    InvalidUploadError,
    PortInUseError,
    RefusedError,
    TooLargeError,
    UnreachableError,
)
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.rpc import (
    ADMIN_METHODS,
    MAX_POLL_S,
    METHODS,
    PREPARING,
    RETRY_AFTER_S,
    Method,
    to_status,
)
from fkd_server.access.identity import host_of
from fkd_server.access.tls import ServerTls, peer_of
from fkd_server.admin import Admin
from fkd_server.admission import Slot, Slots
from fkd_server.limits import (
    MAX_CONTROL_BYTES,
    MAX_DEADLINE_S,
    MAX_REFUSAL_S,
    OPTIONS,
    Limits,
)
from fkd_server.service import TENSOR_SUBMITS, CoordinatorService

_ADMIN_PATHS = frozenset(method.path for method in ADMIN_METHODS.values())
_TENSOR_UPLOADS = ("PutChunk", *TENSOR_SUBMITS)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Routes every method of the protocol to one coroutine; messages stay bytes."""

    def __init__(self, server: GrpcServer) -> None:
        self._handlers = {
            method.path: grpc.stream_stream_rpc_method_handler(self._bind(server, method))
            for method in (*METHODS.values(), *ADMIN_METHODS.values())
        }

    @staticmethod
    def _bind(server: GrpcServer, method: Method):  # type: ignore[no-untyped-def]  # grpc's handler types are sync only
        async def answer(_: object, context: Any) -> None:
            await server.answer(method, context)

        return answer

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._handlers.get(handler_call_details.method)


class GrpcServer:
    """An asyncio gRPC server around a :class:`CoordinatorService`.

    It listens before there is a service, so that a taken port is noticed before the minutes that preparing a run
    may take, and clients that come meanwhile learn what they wait for.
    """

    def __init__(self, heartbeat_s: float, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._service: CoordinatorService | None = None
        self._preparing: Callable[[], str] | None = None
        self._admin: Admin | None = None
        self._tls: ServerTls | None = None
        self._heartbeat_s = heartbeat_s
        self._changed: asyncio.Future[None] | None = None
        self._polls: dict[bytes, asyncio.Future[None]] = {}
        self._stopping = False
        self._requests, self._uploads, self._downloads = (
            Slots(slots) for slots in (limits.requests, limits.uploads, limits.downloads)
        )
        # One worker: the service is serial anyway, and the event loop stays free for polls.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coordinator")
        self._server = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=limits.concurrent_calls)
        self._server.add_generic_rpc_handlers((_Handlers(self),))

    def listen(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Bind, in plain text unless there are credentials; returns the port (port 0: a free one).

        Raises:
            PortInUseError: The address cannot be bound.
        """
        self._tls = tls
        # A bare IPv6 address would read its last group as the port.
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                bound = self._server.add_insecure_port(address)
            else:
                bound = self._server.add_secure_port(address, tls.credentials())
        except RuntimeError:
            bound = 0
        if not bound:
            raise PortInUseError(
                f"cannot listen on {host}:{port}: the port is taken or not allowed; choose another with --port"
            )
        return bound

    async def start_preparing(self, activity: Callable[[], str]) -> None:
        """Begin to answer calls, all in the same way: that the run is being prepared, and how far that is."""
        self._preparing = activity
        await self._server.start()

    async def start(self, service: CoordinatorService) -> None:
        """Answer calls with this service from now on."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._wake)

        self._service, self._admin = service, Admin(service)
        service.on_change(wake)
        if self._preparing is None:
            await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish, then stop."""
        self._stopping = True  # held polls are answered now
        self._wake()
        await self._server.stop(grace_s)
        self._worker.shutdown()

    async def tick(self) -> None:
        """Let the run notice the time."""
        assert self._service is not None
        await asyncio.get_running_loop().run_in_executor(self._worker, self._service.tick)

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
        self._changed = None

    def _next_change(self) -> asyncio.Future[None]:
        """Done when a held poll might get another answer."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        return self._changed

    async def answer(self, method: Method, context: Any) -> None:
        """One call: read the request, answer it, and turn errors into status."""
        strikes = 0
        try:
            self._check_ready()
            if method.path in _ADMIN_PATHS:
                await self._operate(method, context)
            else:
                caller = peer_of(self._tls, context).name or context.peer()
                strikes = self._uploads.strikes(caller)
                await self._answer(method, caller, context)
            return
        except FkdError as error:
            status, busy = to_status(error), isinstance(error, BusyError)
        # Not in the except block: gRPC keeps what aborts a call, and with it would go the error, its traceback,
        # and the request in one of its frames, a megabyte, until the next garbage collection.
        # Whoever is refused may come again at once; the wait is here, for those who would not keep it.
        if strikes and method.name in _TENSOR_UPLOADS:
            await asyncio.sleep(min(MAX_REFUSAL_S, 0.02 * 2.0 ** min(strikes, 8)))
        elif busy:
            await asyncio.sleep(RETRY_AFTER_S)
        await context.abort_with_status(rpc_status.to_status(status))

    def _check_ready(self) -> None:
        if self._service is None:
            assert self._preparing is not None
            activity = self._preparing()
            raise UnreachableError(
                "the coordinator is preparing the run" + (f" ({activity})" if activity else ""),
                reason=PREPARING,
            )

    async def _answer(self, method: Method, caller: str, context: Any) -> None:
        left = context.time_remaining()
        if left is None or left > MAX_DEADLINE_S:
            raise RefusedError(
                f"a call needs a deadline of at most {MAX_DEADLINE_S:g} s: gRPC holds an answer nobody takes until "
                "then",
                reason="NO_DEADLINE",
            )
        if method.name in _TENSOR_UPLOADS:
            async with self._uploads.slot(caller) as slot:
                raw = await _read(method, slot, context)
                answer = await self._ask(method, raw, context)
        else:
            async with self._requests.slot(caller) as slot:
                raw = await _read(method, slot, context)
            if len(raw) > MAX_CONTROL_BYTES:
                raise TooLargeError(f"{method.name} request of {len(raw)} bytes; at most {MAX_CONTROL_BYTES}")
            if method.name == "GetChunk":
                async with self._downloads.slot(caller) as slot:
                    await slot.transfer(context.write(await self._ask(method, raw, context)))
                return
            answer = await (self._poll if method.name == "NextTask" else self._ask)(method, raw, context)
        await self._requests.in_time(context.write(answer))

    async def _operate(self, method: Method, context: Any) -> None:
        """One operator's call; what others send is not even read."""
        assert self._admin is not None
        who = self._admin.operator(method, peer_of(self._tls, context), host_of(context))
        async with self._requests.slot(who) as slot:
            raw = await _read(method, slot, context)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._worker, self._admin.answer, method, raw, who)
        await self._requests.in_time(context.write(answer))

    async def _ask(self, method: Method, raw: bytes, context: Any, *, hold: bool = False) -> bytes | None:
        assert self._service is not None
        peer = peer_of(self._tls, context)  # every time: certificates end while a poll is held
        handle = partial(self._service.handle, method, raw, hold=hold, peer=peer)
        return await asyncio.get_running_loop().run_in_executor(self._worker, handle)

    async def _poll(self, method: Method, raw: bytes, context: Any) -> bytes:
        """Hold a poll while there is only waiting to report, until a newer one of its session comes."""
        session, wait_s = _poll_of(raw)
        until = time.monotonic() + wait_s
        newer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            while True:
                changed = self._next_change()
                left = until - time.monotonic()
                hold = left > 0 and not (newer.done() or self._stopping)
                answer = await self._ask(method, raw, context, hold=hold)
                if answer is not None:
                    return answer
                if self._polls.get(session) is not newer and not newer.done():
                    self._supersede(session, newer)
                # Asking again every heartbeat keeps a client that waits in an open poll alive.
                await asyncio.wait(
                    (changed, newer),
                    timeout=max(0.0, min(left, self._heartbeat_s)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
        finally:
            if self._polls.get(session) is newer:
                del self._polls[session]

    def _supersede(self, session: bytes, newer: asyncio.Future[None]) -> None:
        """One poll of a session is held: the last."""
        older = self._polls.get(session)
        if older is not None and not older.done():
            older.set_result(None)
        self._polls[session] = newer


async def _read(method: Method, slot: Slot, context: Any) -> bytes:
    """The request, once it is here."""
    raw = await slot.transfer(context.read())
    if not isinstance(raw, bytes):
        raise InvalidUploadError(
            f"not a {method.name} request: it ended before its message", reason="MALFORMED"
        )
    return raw


def _poll_of(raw: bytes) -> tuple[bytes, float]:
    """The session of a poll, and how long it asks to be held, capped; the service refuses a malformed request."""
    try:
        request = pb.NextTaskRequest.FromString(raw)
    except Exception:  # protobuf raises several types here; the service names the error
        return b"", 0.0
    return request.session, min(request.wait_s, MAX_POLL_S)
