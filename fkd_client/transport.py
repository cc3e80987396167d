"""Carries calls to a coordinator over gRPC; knows channels and deadlines, not messages."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import grpc

from fkd_client.tls import ClientTls
from fkd_common.access.handshake import why_plain_text_fails, why_tls_fails
from fkd_common.addresses import is_loopback, split_address
from fkd_common.errors import FkdError, UnauthenticatedError, UnreachableError, UsageError
from fkd_common.rpc import MAX_MESSAGE_BYTES, Method, from_rpc_error

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Signs of life do not run out while a poll is held.
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Despite its name: how long one attempt to connect may take. Slow lines need a second and more.
    ("grpc.min_reconnect_backoff_ms", 10_000),
    ("grpc.max_reconnect_backoff_ms", 3_000),
    # A connection of its own: channels of one process would else share one, and its limit of calls.
    ("grpc.use_local_subchannel_pool", 1),
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


_ASK_WHY_S = 10.0
"""While a coordinator does not answer, the reason is looked for this often."""


@dataclass(frozen=True)
class Keepalive:
    """How a connection that died without a word is noticed while a call is open; seconds."""

    after_s: float = 15.0
    """Silence after which the other end is asked for a sign of life; the coordinator allows every 10 s."""
    timeout_s: float = 10.0
    """Time it has to give one."""

    def options(self) -> list[tuple[str, int]]:
        """For a channel. gRPC 1.85 gives up when the ping times out, whatever its keepalive_timeout says."""
        timeout_ms = round(1e3 * self.timeout_s)
        return [
            ("grpc.keepalive_time_ms", round(1e3 * self.after_s)),
            ("grpc.keepalive_timeout_ms", timeout_ms),
            ("grpc.http2.ping_timeout_ms", timeout_ms),
        ]


class GrpcTransport:
    """One channel to a coordinator, over TLS if there are credentials; safe to use from several threads."""

    def __init__(
        self, address: str, tls: ClientTls | None = None, keepalive: Keepalive | None = None
    ) -> None:
        self._address = address
        self._options = [*_OPTIONS, *(keepalive or Keepalive()).options()]
        self._tls = tls
        self._lock = threading.Lock()
        self._asked_why = -_ASK_WHY_S
        self._channel = self._open()

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        """One attempt at one call.

        Raises:
            FkdError: What the coordinator answered, or UnreachableError.
        """
        channel = self._channel
        stub = channel.unary_unary(method.path, request_serializer=None, response_deserializer=None)
        try:
            answer: bytes = stub(request, timeout=timeout_s)
            return answer
        except grpc.RpcError as error:
            problem = self._explained(error)
            if self._renewed(channel, problem):
                raise UnreachableError(
                    f"connecting again with renewed credentials, after: {problem}"
                ) from error
            raise problem from error
        except ValueError as error:  # grpc's word for a channel that another thread has closed
            raise UnreachableError("the connection was closed") from error

    def close(self) -> None:
        """Close the channel; calls at work are cancelled."""
        self._channel.close()

    def _open(self) -> grpc.Channel:
        if self._tls is None:
            return grpc.insecure_channel(self._address, options=self._options)
        return grpc.secure_channel(self._address, self._tls.channel_credentials(), options=self._options)

    def _renewed(self, channel: grpc.Channel, problem: FkdError) -> bool:
        """Open another channel if the credentials were replaced; whether it is worth trying again."""
        if self._tls is None or not isinstance(problem, UnreachableError | UnauthenticatedError):
            return False
        with self._lock:
            if channel is not self._channel:
                return True  # another thread was faster
            if not self._tls.renew():
                return False
            self._channel = self._open()
        channel.close()
        return True

    def _explained(self, error: grpc.RpcError) -> FkdError:
        """The failure of a call; where nobody answered, with the reason if it can be found out."""
        problem = from_rpc_error(error, self._address)
        nobody_answered = problem.reason == UnreachableError.reason and isinstance(problem, UnreachableError)
        if not nobody_answered or time.monotonic() - self._asked_why < _ASK_WHY_S:
            return problem
        self._asked_why = time.monotonic()
        if self._tls is None:
            return why_plain_text_fails(self._address) or problem
        return why_tls_fails(self._address, self._tls.credentials) or problem
