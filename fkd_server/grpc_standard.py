"""The two services that tools expect of any gRPC server, health and reflection: bytes in, bytes out; no sockets.

Health says "" for the process and "fkd.v1.Coordinator" for the run: what probes and balancers ask. Reflection tells
operators' tools (grpcurl) which calls there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from fkd_common.errors import BusyError, InvalidUploadError, NotFoundError
from fkd_common.pb import admin_pb2, coordinator_pb2
from fkd_common.rpc import Method

COORDINATOR = coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].full_name
_ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

CHECK, WATCH = (
    Method(name, f"/{_HEALTH}/{name}", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
    for name in ("Check", "Watch")
)
REFLECTION_METHODS = tuple(
    Method(
        "ServerReflectionInfo",
        f"/grpc.reflection.{release}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest,
        reflection_pb2.ServerReflectionResponse,
    )
    for release in ("v1", "v1alpha")  # one form, two names
)

MAX_WATCHES = 64
"""Watches open at once."""
WATCHES_PER_CALLER = 8

_Status = health_pb2.HealthCheckResponse


class Health:
    """Whether the process and the run are served."""

    def __init__(self) -> None:
        self._serves = False
        self.drains = False
        """Whether the program stops."""
        self._ended = False
        self._watches: Counter[str] = Counter()
        self._changed = asyncio.Event()

    def serve(self) -> None:
        """The run is there."""
        self._serves = True
        self._tell()

    def drain(self) -> None:
        """The program stops: whoever asks is to go elsewhere, or come later."""
        self.drains = True
        self._tell()

    def end(self) -> None:
        """Watches end."""
        self.drains = self._ended = True
        self._tell()

    def check(self, raw: bytes) -> bytes:
        """Answer Check.

        Raises:
            InvalidUploadError: The request is not one.
            NotFoundError: There is no such service.
        """
        service = _service(raw)
        status = self._status(service)
        if status == _Status.SERVICE_UNKNOWN:
            raise NotFoundError(
                f"no service {service[:80]!r}: there are '' and {COORDINATOR}", reason="NO_SERVICE"
            )
        answer: bytes = _Status(status=status).SerializeToString()
        return answer

    async def watch(self, raw: bytes, caller: str, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Answer Watch: the status now, and whenever it changes, until watches end.

        Args:
            raw: The serialised request.
            caller: Who watches: a certificate's holder, or a connection.
            send: Takes the answers, serialised.

        Raises:
            InvalidUploadError: The request is not one.
            BusyError: There are enough watches, or the caller has its share, or does not take its messages.
        """
        service, told = _service(raw), None
        for open_, most in (
            (self._watches.total(), MAX_WATCHES),
            (self._watches[caller], WATCHES_PER_CALLER),
        ):
            if open_ >= most:
                raise BusyError(f"{open_} watches are open already", reason="TOO_MANY_WATCHES")
        self._watches[caller] += 1
        try:
            while True:
                changed, status = self._changed, self._status(service)
                if status != told:
                    await send(_Status(status=status).SerializeToString())
                    told = status
                    continue  # it may have changed meanwhile
                if self._ended:
                    return
                await changed.wait()
        finally:
            self._watches[caller] -= 1
            if not self._watches[caller]:
                del self._watches[caller]

    def _status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus:
        if service not in ("", COORDINATOR):
            return _Status.SERVICE_UNKNOWN
        served = not self.drains and (self._serves or service == "")
        return _Status.SERVING if served else _Status.NOT_SERVING

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Reflection:
    """Tells which calls there are."""

    def __init__(self) -> None:
        names = [COORDINATOR, _ADMIN, _HEALTH, reflection.SERVICE_NAME]
        # Its own description of itself says that it returns nothing.
        self._answers: Any = reflection.ReflectionServicer(names).ServerReflectionInfo

    def answer(self, raw: bytes) -> bytes:
        """Answer one request of a stream.

        Raises:
            InvalidUploadError: It is not one.
        """
        try:
            request = reflection_pb2.ServerReflectionRequest.FromString(raw)
        except DecodeError as error:
            raise InvalidUploadError(f"not a reflection request: {error}", reason="MALFORMED") from error
        (answer,) = self._answers(iter([request]), None)
        raw_answer: bytes = answer.SerializeToString()
        return raw_answer


def _service(raw: bytes) -> str:
    try:
        service: str = health_pb2.HealthCheckRequest.FromString(raw).service
        return service
    except DecodeError as error:
        raise InvalidUploadError(f"not a health request: {error}", reason="MALFORMED") from error
