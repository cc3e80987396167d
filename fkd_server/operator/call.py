"""One call of an operator to a coordinator: its address, the operator's certificate, and why it may fail."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from fkd_common.access.certificates import OPERATOR_FILES, Credentials
from fkd_common.access.handshake import why_plain_text_fails, why_tls_fails
from fkd_common.access.roles import OPERATOR_COMMAND
from fkd_common.addresses import split_address
from fkd_common.errors import FkdError, UnreachableError, UsageError
from fkd_common.given_path import given_path
from fkd_common.pb import admin_pb2 as pb
from fkd_common.program import OneSentenceParser
from fkd_common.rpc import ADMIN_METHODS, MAX_ANSWER_BYTES, PREPARING, from_rpc_error
from fkd_server.access.certificates import CertificateAuthority

CALL_TIMEOUT_S = 10.0


def operator_parser(verb: str, description: str) -> OneSentenceParser:
    """A parser of a verb's flags, with those that say which coordinator is meant."""
    parser = OneSentenceParser(prog=f"fkd-server {verb}", description=description)
    parser.add_argument(
        "--server",
        default=os.environ.get("FKD_SERVER") or "127.0.0.1:50051",
        help="the coordinator, HOST:PORT (default: $FKD_SERVER, else 127.0.0.1:50051)",
    )
    add_tls_flag(parser)
    return parser


def add_tls_flag(parser: argparse.ArgumentParser, when: str = "") -> None:
    """The flag for an operator's certificate; `when` says where it counts, if that is not everywhere."""
    parser.add_argument(
        "--tls",
        type=given_path,
        default=os.environ.get("FKD_OPERATOR_TLS") or None,
        help=f"{when}folder of an operator's certificate (default: $FKD_OPERATOR_TLS, else plain text)",
    )


class Operator:
    """An operator's connection to a coordinator, for calls one after the other."""

    def __init__(self, address: str, tls: Path | None) -> None:
        """Connect when first called.

        Args:
            address: HOST:PORT.
            tls: Folder of an operator's certificate; None for plain text.

        Raises:
            UsageError: The address is none, or the folder holds no such certificate.
        """
        split_address(address)
        self._address = address
        self._credentials = None if tls is None else _credentials(tls)
        # A server that is restarted is to be found again soon.
        options = [
            ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
            ("grpc.max_reconnect_backoff_ms", 2000),
        ]
        if self._credentials is None:
            self._channel = grpc.insecure_channel(address, options)
        else:
            own = self._credentials
            sealed = grpc.ssl_channel_credentials(own.ca, own.key, own.chain)
            self._channel = grpc.secure_channel(address, sealed, options)

    @classmethod
    def of(cls, given: argparse.Namespace) -> Operator:
        """The connection that :func:`operator_parser`'s flags ask for."""
        return cls(given.server, given.tls)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.close()

    def call(self, name: str, request: Message) -> Any:
        """Make one call.

        Args:
            name: A method of fkd.v1.Admin.
            request: What it asks.

        Returns:
            Its answer, of the type that the method has.

        Raises:
            FkdError: What the coordinator answered, or UnreachableError.
        """
        method = ADMIN_METHODS[name]
        stub = self._channel.unary_unary(method.path, request_serializer=None, response_deserializer=None)
        try:
            raw: bytes = stub(request.SerializeToString(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._explained(error) from error
        return method.response_type.FromString(raw)

    def status(self) -> pb.StatusResponse:
        """Where the run stands; "preparing" while there is none to ask about."""
        try:
            answer: pb.StatusResponse = self.call("Status", pb.StatusRequest())
        except UnreachableError as error:
            if error.reason != PREPARING:
                raise
            return pb.StatusResponse(state="preparing", round=-1, waiting_for=str(error))
        return answer

    def _explained(self, error: grpc.RpcError) -> FkdError:
        problem = from_rpc_error(error, self._address)
        if not isinstance(problem, UnreachableError) or problem.reason != UnreachableError.reason:
            return problem
        if self._credentials is None:
            found = why_plain_text_fails(self._address, OPERATOR_FILES)
        else:
            found = why_tls_fails(self._address, self._credentials, OPERATOR_FILES)
        return found or UnreachableError(f"no coordinator answers at {self._address}: see --server")


def _credentials(folder: Path) -> Credentials:
    if CertificateAuthority.exists(folder):
        raise UsageError(
            f"--tls {folder} is the coordinator's own folder, which is for serving: make yourself an operator's "
            f"certificate there with {OPERATOR_COMMAND}, then give --tls DIR here"
        )
    return Credentials.read(folder, OPERATOR_FILES)
