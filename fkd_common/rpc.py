"""The protocol as a table of methods, and the one place where errors become gRPC status and back.

A call is bytes in, bytes out: over gRPC and in one process the same bytes are parsed, counted and answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from fkd_common import errors
from fkd_common.pb import admin_pb2, coordinator_pb2, enrolment_pb2

PROTOCOL_VERSION = 1
MAX_CHUNK_BYTES = 1 << 20
MAX_MESSAGE_BYTES = MAX_CHUNK_BYTES + (64 << 10)
MAX_ANSWER_BYTES = 64 << 20
"""Longest answer to an operator: a status names every client, ten thousand of them with their classes if need be."""
MAX_POLL_S = 30.0


@dataclass(frozen=True)
class Method:
    """One method of a service of fkd.v1."""

    name: str
    path: str
    request_type: type[Message]
    response_type: type[Message]


def _methods_of(service: ServiceDescriptor) -> dict[str, Method]:
    return {
        method.name: Method(
            method.name,
            f"/{service.full_name}/{method.name}",
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for method in service.methods
    }


METHODS = _methods_of(coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"])
"""What clients call."""
ADMIN_METHODS = _methods_of(admin_pb2.DESCRIPTOR.services_by_name["Admin"])
"""What operators call."""
ENROLMENT_METHODS = _methods_of(enrolment_pb2.DESCRIPTOR.services_by_name["Enrolment"])
"""What a site calls that has no certificate yet."""


class Transport(Protocol):
    """Carries one call to the coordinator."""

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        """Send serialised request bytes, return the serialised response.

        Raises:
            FkdError: What the coordinator answered, or UnreachableError.
        """

    def close(self) -> None:
        """Release the connection."""


# The codes' meaning for a caller: INVALID_ARGUMENT is never retried, FAILED_PRECONDITION means the state
# moved on, ABORTED is retried at a higher level, UNAVAILABLE is retried as it is.
_CODES: dict[type[errors.FkdError], int] = {
    errors.InvalidUploadError: code_pb2.INVALID_ARGUMENT,
    errors.StaleError: code_pb2.FAILED_PRECONDITION,
    errors.RefusedError: code_pb2.FAILED_PRECONDITION,
    errors.UnauthenticatedError: code_pb2.UNAUTHENTICATED,
    errors.ForbiddenError: code_pb2.PERMISSION_DENIED,
    errors.ConflictError: code_pb2.ALREADY_EXISTS,
    errors.SupersededError: code_pb2.ABORTED,
    errors.CorruptTransferError: code_pb2.DATA_LOSS,
    errors.TooLargeError: code_pb2.RESOURCE_EXHAUSTED,
    errors.NotFoundError: code_pb2.NOT_FOUND,
    errors.UnreachableError: code_pb2.UNAVAILABLE,
    errors.BusyError: code_pb2.RESOURCE_EXHAUSTED,
}
_KINDS: dict[str, type[errors.FkdError]] = {kind.__name__: kind for kind in _CODES}

PREPARING = "PREPARING"
"""Reason of a coordinator that answers, but has nothing to serve yet."""

RETRY_AFTER_S = 1
"""When to come back to a coordinator that is busy or whose disk is full; clients back off further from there."""

_MAX_DETAIL = 1000
"""Longest error message sent, in characters: gRPC carries it, twice, in trailers of at most 8 KiB."""


def to_status(error: errors.FkdError) -> status_pb2.Status:
    """An expected error as google.rpc.Status with ErrorInfo."""
    detail = any_pb2.Any()
    kind = next((kind for kind in type(error).__mro__ if kind in _CODES), errors.FkdError)
    # The kind travels beside the code: several kinds share one, and mean different things to a client.
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain="fkd.v1", metadata={"kind": kind.__name__})
    detail.Pack(info)
    details = [detail]
    if isinstance(error, errors.UnreachableError):  # it will pass: say when to come back
        again = any_pb2.Any()
        again.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=RETRY_AFTER_S)))
        details.append(again)
    code = _CODES.get(kind, code_pb2.INTERNAL)
    return status_pb2.Status(code=code, message=str(error)[:_MAX_DETAIL], details=details)


def from_rpc_error(error: grpc.RpcError, address: str = "the address") -> errors.FkdError:
    """What a failed gRPC call means in our own terms.

    Args:
        error: The failure.
        address: Who was called, HOST:PORT, for a message.
    """
    call: Any = error
    code, text = call.code(), call.details() or ""
    try:
        status = rpc_status.from_call(call)
        for detail in status.details if status is not None else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                kind = _KINDS.get(info.metadata["kind"], errors.FkdError)
                return kind(status.message or code.name, reason=info.reason)
    except (ValueError, DecodeError):
        pass  # not from a coordinator: something in between answered, and its code says what it can
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in text:
        return errors.TooLargeError(text)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.RefusedError(
            f"what answers at {address} does not know this call: it is another program, another release, or another "
            "port of the coordinator (--join has one of its own, by default the main port + 1)",
            reason="NO_COORDINATOR",
        )
    busy_or_gone = (
        grpc.StatusCode.RESOURCE_EXHAUSTED,  # gRPC's own: the server is busy, and will not always be
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    )
    if code in busy_or_gone:
        return errors.UnreachableError(text or code.name)
    return errors.FkdError(f"the coordinator answered {code.name}: {text}")
