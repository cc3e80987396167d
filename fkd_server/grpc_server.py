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
from typing import TYPE_CHECKING, Any

import grpc
from google.rpc import code_pb2
from grpc_status import rpc_status

from fkd_common.addresses import join_address
from fkd_common.errors import (
    BusyError,
    FkdError,
    PortInUseError,
    RefusedError,
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
from fkd_server.access.identity import host_of, peer_of
from fkd_server.admin import Admin
from fkd_server.admission import Slots
from fkd_server.grpc_polls import Polls
from fkd_server.grpc_reading import read_control, read_request
from fkd_server.grpc_standard import CHECK, REFLECTION_METHODS, WATCH, Health, Reflection
from fkd_server.limits import (
    MAX_DEADLINE_S,
    MAX_REFUSAL_S,
    OPTIONS,
    Limits,
)
from fkd_server.service import CoordinatorService
from fkd_server.submissions import TENSOR_SUBMITS

if TYPE_CHECKING:
    from fkd_server.access.tls import ServerTls

_ADMIN_PATHS = frozenset(method.path for method in ADMIN_METHODS.values())
_REFLECTION_PATHS = frozenset(method.path for method in REFLECTION_METHODS)

Answered = Callable[[str, str, str, float], None]
"""Told of every call: method, gRPC status, reason of a refusal or "", seconds until it was decided."""
_TENSOR_UPLOADS = ("PutChunk", *TENSOR_SUBMITS)


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]
    """Routes every method of the protocol to one coroutine; messages stay bytes."""

    def __init__(self, server: GrpcServer) -> None:
        self._handlers = {
            method.path: grpc.stream_stream_rpc_method_handler(self._bind(server, method))
            for method in (*METHODS.values(), *ADMIN_METHODS.values(), *REFLECTION_METHODS, CHECK, WATCH)
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

    def __init__(
        self,
        limits: Limits | None = None,
        answered: Answered = lambda method, code, reason, seconds: None,
    ) -> None:
        """Listen nowhere yet.

        Args:
            limits: What peers may hold.
            answered: Told of every call.
        """
        limits = limits or Limits()
        self.health = Health()
        self._reflection = Reflection()
        self._answered = answered
        self._service: CoordinatorService | None = None
        self._preparing: Callable[[], str] | None = None
        self._admin: Admin | None = None
        self._tls: ServerTls | None = None
        self._polls = Polls()
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
        address = join_address(host, port)
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

    async def start(self, service: CoordinatorService, admin: Admin) -> None:
        """Answer clients' calls with this service, and operators' with this one, from now on."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._polls.wake)

        self._service, self._admin = service, admin
        service.on_change(wake)
        self.health.serve()
        if self._preparing is None:
            await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish, then stop."""
        self._polls.stop()
        self.health.end()
        await self._server.stop(grace_s)
        self._worker.shutdown()

    async def tick(self) -> None:
        """Let the run notice the time."""
        assert self._service is not None
        polling = self._polls.held()
        await asyncio.get_running_loop().run_in_executor(self._worker, self._service.tick, polling)

    async def worker_turn(self) -> None:
        """Return once the worker has done what it was asked before: a worker that is stuck never comes to it."""
        await asyncio.get_running_loop().run_in_executor(self._worker, int)

    async def answer(self, method: Method, context: Any) -> None:
        """One call: read the request, answer it, and turn errors into status."""
        began, code, reason, strikes = time.monotonic(), "CANCELLED", "", 0
        try:
            if method in (CHECK, WATCH):
                await self._tell_health(method, context)
            elif self._check_ready() and method.path in _ADMIN_PATHS:
                await self._operate(method, context)
            elif method.path in _REFLECTION_PATHS:
                await self._reflect(method, context)
            else:
                caller = peer_of(self._tls, context).name or context.peer()
                strikes = self._uploads.strikes(caller)
                await self._answer(method, caller, context)
            code = "OK"
            return
        except FkdError as error:
            status, busy = to_status(error), isinstance(error, BusyError)
            code, reason = code_pb2.Code.Name(status.code), error.reason
        finally:
            self._answered(method.name, code, reason, time.monotonic() - began)
        # Not in the except block: gRPC keeps what aborts a call, and with it would go the error, its traceback,
        # and the request in one of its frames, a megabyte, until the next garbage collection.
        # Whoever is refused may come again at once; the wait is here, for those who would not keep it.
        if strikes and method.name in _TENSOR_UPLOADS:
            await asyncio.sleep(min(MAX_REFUSAL_S, 0.02 * 2.0 ** min(strikes, 8)))
        elif busy:
            await asyncio.sleep(RETRY_AFTER_S)
        await context.abort_with_status(rpc_status.to_status(status))

    def unready(self) -> str:
        """Why the run is not served, in a few words; empty while it is."""
        if self.health.drains:
            return "stopping"
        if self._service is not None:
            return "the disk does not take or give data" if self._service.disk.lately() else ""
        activity = self._preparing() if self._preparing is not None else ""
        return f"preparing: {activity}" if activity else "preparing"

    def _check_ready(self) -> bool:
        """True.

        Raises:
            UnreachableError: The run is being prepared.
        """
        if self._service is None:
            assert self._preparing is not None
            activity = self._preparing()
            raise UnreachableError(
                "the coordinator is preparing the run" + (f" ({activity})" if activity else ""),
                reason=PREPARING,
            )
        return True

    async def _tell_health(self, method: Method, context: Any) -> None:
        """A probe's call; anybody's that may connect."""
        caller = peer_of(self._tls, context).name or context.peer()
        raw = await read_control(method, caller, self._requests, context)
        if method is CHECK:
            await self._requests.in_time(context.write(self.health.check(raw)))
        else:
            await self.health.watch(raw, caller, lambda status: self._requests.in_time(context.write(status)))

    async def _reflect(self, method: Method, context: Any) -> None:
        """An operator's tool asks which calls there are, one request after another."""
        assert self._admin is not None
        who = self._admin.operator(method, peer_of(self._tls, context), host_of(context))
        while True:
            async with self._requests.slot(who) as slot:
                raw = await slot.transfer(context.read())
            if not isinstance(raw, bytes):
                return
            await self._requests.in_time(context.write(self._reflection.answer(raw)))

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
                raw = await read_request(method, slot, context)
                answer = await self._ask(method, raw, context)
        else:
            raw = await read_control(method, caller, self._requests, context)
            if method.name == "GetChunk":
                async with self._downloads.slot(caller) as slot:
                    await slot.transfer(context.write(await self._ask(method, raw, context)))
                return
            answer = await (self._poll if method.name == "NextTask" else self._ask)(method, raw, context)
        await self._requests.in_time(context.write(answer))

    async def _operate(self, method: Method, context: Any) -> None:
        """One operator's call; what others send is not even read."""
        assert self._admin is not None
        peer = peer_of(self._tls, context)
        who = self._admin.operator(method, peer, host_of(context))
        raw = await read_control(method, peer.name or context.peer(), self._requests, context)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._worker, self._admin.answer, method, raw, who)
        await self._requests.in_time(context.write(answer))

    async def _ask(self, method: Method, raw: bytes, context: Any, *, hold: bool = False) -> bytes | None:
        assert self._service is not None
        peer = peer_of(self._tls, context)  # every time: certificates end while a poll is held
        handle = partial(self._service.handle, method, raw, hold=hold, peer=peer)
        return await asyncio.get_running_loop().run_in_executor(self._worker, handle)

    async def _poll(self, method: Method, raw: bytes, context: Any) -> bytes:
        session, wait_s = _poll_of(raw)
        return await self._polls.hold(
            session, wait_s, lambda hold: self._ask(method, raw, context, hold=hold)
        )


def _poll_of(raw: bytes) -> tuple[bytes, float]:
    """The session of a poll, and how long it asks to be held, capped; the service refuses a malformed request."""
    try:
        request = pb.NextTaskRequest.FromString(raw)
    except Exception:  # protobuf raises several types here; the service names the error
        return b"", 0.0
    return request.session, min(request.wait_s, MAX_POLL_S)
