"""What peers may make the coordinator hold, and for how long: numbers, no behaviour.

Together they bound its memory: every large message is in one of the slots, what gRPC takes in unread is small, and
every call ends at its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fkd_common.rpc import MAX_ANSWER_BYTES, MAX_MESSAGE_BYTES
from fkd_server.admission import SlotLimits

MAX_CONTROL_BYTES = 64 << 10
"""Longest request that carries no tensors."""

MAX_DEADLINE_S = 90.0
"""Longest deadline of a call. Every call needs one: it is what frees an answer that its peer does not take."""

MAX_REFUSAL_S = 5.0
"""Whoever sends megabytes that are refused, one after another, waits longer for each answer, up to this."""

UNREAD_BYTES = 16 << 10
"""What gRPC takes in of a request that is not being read yet."""

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_ANSWER_BYTES),
    # The window stays as it is: what nobody reads yet must not grow with the line's speed.
    ("grpc.http2.lookahead_bytes", UNREAD_BYTES),
    ("grpc.http2.bdp_probe", 0),
    # Clients ping every 15 s while a call is open; anything much faster is a flood.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # gRPC 1.85 gives up a connection when a ping times out, after a minute unless told otherwise.
    ("grpc.http2.ping_timeout_ms", 10_000),
    # A client at work polls or sends signs of life; one that does neither may come again.
    ("grpc.max_connection_idle_ms", 120_000),
    # A client has a poll, a heartbeat and a transfer at work; more is a flood.
    ("grpc.max_concurrent_streams", 8),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Two coordinators on one port would split the clients between them.
    ("grpc.so_reuseport", 0),
]
"""Of the gRPC server."""


@dataclass(frozen=True)
class Limits:
    """What all peers together may have under way; times in seconds.

    The longest times let a chunk of 1 MiB through a line of 1 Mbit/s (9 s), with room to spare.
    """

    requests: SlotLimits = field(default=SlotLimits(slots=32, per_caller=4, transfer_s=10.0, contended_s=2.0))
    """Reading requests that should be short."""
    uploads: SlotLimits = field(default=SlotLimits(slots=48, per_caller=3, transfer_s=60.0, contended_s=24.0))
    """Requests that carry tensors, from their first byte until they are answered."""
    downloads: SlotLimits = field(
        default=SlotLimits(slots=24, per_caller=3, transfer_s=60.0, contended_s=24.0)
    )
    """Chunks of artifacts, until the peer has taken them."""
    concurrent_calls: int = 12_000
    """Open calls, held polls included; more are refused unread."""
