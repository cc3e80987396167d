"""Errors become gRPC status and come back as what they were; the method table is the protocol's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from fkd_common import errors
from fkd_common.rpc import METHODS, from_rpc_error, to_status

ROOT = Path(__file__).parents[2]

ON_THE_WIRE: dict[type[errors.FkdError], str] = {
    errors.InvalidUploadError: "INVALID_ARGUMENT",
    errors.StaleError: "FAILED_PRECONDITION",
    errors.RefusedError: "FAILED_PRECONDITION",
    errors.UnauthenticatedError: "UNAUTHENTICATED",
    errors.ForbiddenError: "PERMISSION_DENIED",
    errors.ConflictError: "ALREADY_EXISTS",
    errors.SupersededError: "ABORTED",
    errors.CorruptTransferError: "DATA_LOSS",
    errors.TooLargeError: "RESOURCE_EXHAUSTED",
    errors.BusyError: "RESOURCE_EXHAUSTED",
    errors.NotFoundError: "NOT_FOUND",
    errors.UnreachableError: "UNAVAILABLE",
}
ALL_KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.FkdError) and kind is not errors.FkdError
]


class FailedCall(grpc.RpcError):
    """What grpc hands a client when a call failed: a code, a text, and trailers."""

    def __init__(self, code: grpc.StatusCode, text: str, trailers: Any = ()) -> None:
        super().__init__(text)
        self._code, self._text, self._trailers = code, text, trailers

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._text

    def trailing_metadata(self) -> Any:
        return self._trailers


def there_and_back(error: errors.FkdError) -> errors.FkdError:
    sent = rpc_status.to_status(to_status(error))
    return from_rpc_error(FailedCall(sent.code, sent.details, sent.trailing_metadata))


@pytest.mark.parametrize("kind", ON_THE_WIRE)
def test_an_error_comes_back_as_the_kind_it_was(kind: type[errors.FkdError]) -> None:
    back = there_and_back(kind("what came, what was expected"))
    assert type(back) is kind
    assert (str(back), back.reason) == ("what came, what was expected", kind.reason)


@pytest.mark.parametrize("kind, code", ON_THE_WIRE.items())
def test_an_error_has_its_status_code_and_an_error_info(kind: type[errors.FkdError], code: str) -> None:
    status = to_status(kind("text", reason="WHY"))
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert code_pb2.Code.Name(status.code) == code
    assert (status.message, info.reason, info.domain) == ("text", "WHY", "fkd.v1")


@pytest.mark.parametrize("kind", [kind for kind in ALL_KINDS if kind not in ON_THE_WIRE])
def test_an_error_that_never_travels_arrives_as_a_plain_one(kind: type[errors.FkdError]) -> None:
    back = there_and_back(kind("text"))
    assert type(back) is errors.FkdError
    assert (str(back), back.reason) == ("text", kind.reason)


def test_a_special_reason_survives() -> None:
    assert there_and_back(errors.InvalidUploadError("n", reason="NOT_FINITE")).reason == "NOT_FINITE"


def test_a_long_message_is_cut_to_what_trailers_can_carry() -> None:
    status = to_status(errors.InvalidUploadError("é" * 100_000))
    assert len(status.message) == 1000
    assert status.ByteSize() < 4096


@pytest.mark.parametrize(
    "code, kind",
    [
        (grpc.StatusCode.UNAVAILABLE, errors.UnreachableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.UnreachableError),
        (grpc.StatusCode.CANCELLED, errors.UnreachableError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.UnreachableError),  # busy now, not for ever
        (grpc.StatusCode.UNKNOWN, errors.FkdError),
    ],
)
def test_a_failure_of_grpc_itself_is_understood(code: grpc.StatusCode, kind: type[errors.FkdError]) -> None:
    error = from_rpc_error(FailedCall(code, "no such luck"))
    assert type(error) is kind
    assert "no such luck" in str(error)


@pytest.mark.scenario(32)
def test_another_port_or_program_is_named_and_not_tried_again() -> None:
    """Scenario 32: gRPC says no more than "Method not found!"."""
    error = from_rpc_error(FailedCall(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), "hub:50052")
    assert error.exit_code is errors.ExitCode.REJECTED
    assert "hub:50052" in str(error)
    assert "--join" in str(error)


def test_an_unreadable_status_is_taken_by_its_code() -> None:
    """A proxy in between may answer with details that are not ours."""
    trailers = rpc_status.to_status(status_pb2.Status(code=14, message="proxy")).trailing_metadata
    assert isinstance(
        from_rpc_error(FailedCall(grpc.StatusCode.UNAVAILABLE, "proxy", trailers)), errors.UnreachableError
    )


@pytest.mark.scenario(34)
@pytest.mark.parametrize("spoilt", ["status", "detail"])
def test_details_that_are_no_protobuf_are_taken_by_their_code(spoilt: str) -> None:
    """Scenario 34: whatever answers at the address, a client ends with a sentence."""
    raw = b"\xff\xff\xff"
    if spoilt == "detail":
        status = status_pb2.Status(code=14, message="proxy")
        status.details.add(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=raw)
        raw = status.SerializeToString()
    failed = FailedCall(grpc.StatusCode.UNAVAILABLE, "proxy", (("grpc-status-details-bin", raw),))
    error = from_rpc_error(failed)
    assert isinstance(error, errors.UnreachableError)
    assert "proxy" in str(error)


def test_the_method_table_is_the_protocols() -> None:
    text = (ROOT / "proto/fkd/v1/coordinator.proto").read_text()
    declared = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\)", text)
    assert [
        (method.name, method.request_type.DESCRIPTOR.name, method.response_type.DESCRIPTOR.name)
        for method in METHODS.values()
    ] == declared
    assert all(method.path == f"/fkd.v1.Coordinator/{name}" for name, method in METHODS.items())


def test_every_request_but_the_first_carries_a_session() -> None:
    without = [m.name for m in METHODS.values() if "session" not in m.request_type.DESCRIPTOR.fields_by_name]
    assert without == ["Register"]


@pytest.mark.scenario(7)
def test_every_request_that_changes_a_round_says_which() -> None:
    """Scenario 7."""
    for name in ("PutChunk", "FinishTask", "ReportFailure", *(n for n in METHODS if n.startswith("Submit"))):
        assert "key" in METHODS[name].request_type.DESCRIPTOR.fields_by_name


def test_only_a_message_over_the_limit_is_too_large() -> None:
    text = "CLIENT: Sent message larger than max (5 vs. 4)"
    error = from_rpc_error(FailedCall(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
    assert type(error) is errors.TooLargeError


@pytest.mark.scenario(28)
@pytest.mark.parametrize(
    "error", [errors.UnreachableError("disk full", reason="STORAGE"), errors.BusyError("later")]
)
def test_what_will_pass_says_when_to_come_back(error: errors.FkdError) -> None:
    """Scenario 28: google.rpc.RetryInfo beside the reason."""
    _, again = to_status(error).details
    info = error_details_pb2.RetryInfo()
    assert again.Unpack(info)
    assert info.retry_delay.seconds == 1


def test_a_busy_coordinator_is_one_to_try_again() -> None:
    assert to_status(errors.BusyError("later")).code == code_pb2.RESOURCE_EXHAUSTED
    assert issubclass(errors.BusyError, errors.UnreachableError)
