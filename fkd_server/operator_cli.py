"""`fkd-server status` and `fkd-server stop`: an operator's questions to a running coordinator."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson

from fkd_common.access.certificates import OPERATOR_COMMAND, OPERATOR_FILES, Credentials
from fkd_common.access.handshake import why_plain_text_fails, why_tls_fails
from fkd_common.addresses import split_address
from fkd_common.errors import ExitCode, FkdError, UnreachableError, UsageError
from fkd_common.ledger import PHASE_NAMES
from fkd_common.pb import admin_pb2 as pb
from fkd_common.program import OneSentenceParser
from fkd_common.rpc import ADMIN_METHODS, from_rpc_error
from fkd_server.access.certificates import CertificateAuthority

CALL_TIMEOUT_S = 10.0


def status(arguments: list[str]) -> int:
    """Say where a run stands; returns the exit code.

    Raises:
        FkdError: The coordinator does not answer, or does not take orders from this caller.
    """
    parser = _parser("status", "Say where a run stands.")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    given = parser.parse_args(arguments)
    answer: pb.StatusResponse = _call("Status", given)
    print(_as_json(answer) if given.json else _as_text(answer))
    return ExitCode.OK


def stop(arguments: list[str]) -> int:
    """End a run without a result; returns the exit code.

    Raises:
        FkdError: The coordinator does not answer, or does not take orders from this caller.
    """
    given = _parser("stop", "End a run without a result; its clients learn it.").parse_args(arguments)
    answer: pb.StopResponse = _call("Stop", given)
    print(f"the run is over: {answer.detail}")
    return ExitCode.OK


def _parser(verb: str, description: str) -> OneSentenceParser:
    parser = OneSentenceParser(prog=f"fkd-server {verb}", description=description)
    parser.add_argument("--server", default="127.0.0.1:50051", help="the coordinator, HOST:PORT")
    parser.add_argument(
        "--tls",
        type=Path,
        default=os.environ.get("FKD_TLS") or None,
        help="folder of an operator's certificate: ca.pem, cert.pem, key.pem",
    )
    return parser


def _call(name: str, given: argparse.Namespace) -> Any:
    method, address = ADMIN_METHODS[name], given.server
    split_address(address)
    credentials = None if given.tls is None else _credentials(Path(given.tls))
    if credentials is None:
        channel = grpc.insecure_channel(address)
    else:
        own = grpc.ssl_channel_credentials(credentials.ca, credentials.key, credentials.chain)
        channel = grpc.secure_channel(address, own)
    with channel:
        stub = channel.unary_unary(method.path, request_serializer=None, response_deserializer=None)
        try:
            raw: bytes = stub(method.request_type().SerializeToString(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise _explained(address, credentials, error) from error
    return method.response_type.FromString(raw)


def _credentials(folder: Path) -> Credentials:
    if CertificateAuthority.exists(folder):
        raise UsageError(
            f"--tls {folder} is the coordinator's own folder, which is for serving: make yourself an operator's "
            f"certificate there with {OPERATOR_COMMAND}, then give --tls DIR here"
        )
    return Credentials.read(folder, OPERATOR_FILES)


def _explained(address: str, credentials: Credentials | None, error: grpc.RpcError) -> FkdError:
    problem = from_rpc_error(error, address)
    if not isinstance(problem, UnreachableError):
        return problem
    if credentials is None:
        found = why_plain_text_fails(address, OPERATOR_FILES)
    else:
        found = why_tls_fails(address, credentials, OPERATOR_FILES)
    return found or UnreachableError(f"no coordinator answers at {address}: see --server")


def _as_json(status: pb.StatusResponse) -> str:
    return MessageToJson(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def _as_text(status: pb.StatusResponse) -> str:
    phase = PHASE_NAMES.get(status.phase, "between phases")
    where = (
        f"round {status.round} of {status.rounds}, {phase}" if status.round >= 0 else "before the first round"
    )
    lines = [f"run {status.run_id}: {status.state}, {where}", status.waiting_for]
    lines += [f"  {client.name}: {_state(client)}" for client in status.clients]
    return "\n".join(lines)


def _state(client: pb.ClientStatus) -> str:
    if not client.alive:
        return "gone"
    if client.ready:
        return "waiting"
    return f"working: {client.activity} {client.progress:.0%}" if client.activity else "working"
