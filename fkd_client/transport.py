"""Carries calls to a coordinator over gRPC; knows channels and deadlines, not messages."""

from __future__ import annotations

import grpc

from fkd_common.addresses import is_loopback, split_address
from fkd_common.errors import UsageError
from fkd_common.rpc import MAX_MESSAGE_BYTES, Method, from_rpc_error

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    # Retries are ours, so that every attempt is booked.
    ("grpc.enable_retries", 0),
]


def check_plain_text(address: str, insecure: bool) -> None:
    """Refuse plain text beyond loopback unless it was asked for in so many words.

    Raises:
        UsageError: The host is not loopback and `insecure` is False.
    """
    host, _ = split_address(address)
    if not is_loopback(host) and not insecure:
        raise UsageError(
            f"--server {address} would be reached in plain text: tunnel to it (ssh -L 50051:localhost:50051 {host}) "
            "and use localhost:50051, or say --insecure inside a network you trust"
        )


class GrpcTransport:
    """One plain-text channel to a coordinator; safe to use from several threads."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        """One attempt at one call.

        Raises:
            FkdError: What the coordinator answered, or UnreachableError.
        """
        stub = self._channel.unary_unary(method.path, request_serializer=None, response_deserializer=None)
        try:
            answer: bytes = stub(request, timeout=timeout_s)
            return answer
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def close(self) -> None:
        """Close the channel; calls at work are cancelled."""
        self._channel.close()
