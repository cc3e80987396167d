"""Peers that open connections and do nothing with them, or only ping: a real coordinator hangs up."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fkd_server.cli import main as server_main

from ..e2e.programs import Program, address_of
from .http2 import PING, Connection

pytestmark = pytest.mark.e2e

HANDSHAKE_S = 10.0
"""What a peer has to say what it speaks."""

CLIENT_HELLO_BEGINS = bytes.fromhex("16030102000100")
"""A TLS record that announces 512 bytes of ClientHello, and its first two."""


def port_of(server: Program) -> int:
    return int(address_of(server).rpartition(":")[2])


@pytest.mark.scenario(23)
def test_a_peer_that_says_nothing_or_half_a_handshake_is_hung_up_on(
    start_server: Callable[..., Program], server: Program, tmp_path: Path
) -> None:
    """Scenario 23: TCP open and silent; TLS half handshake."""
    assert server_main(["certs", "init", "--tls", str(tmp_path / "tls")]) == 0
    secured = ["--tls", str(tmp_path / "tls"), "--join-port", "0", "--host", "127.0.0.1"]
    over_tls = start_server(*secured, run_id="tls")
    began = time.monotonic()
    silent = [socket.create_connection(("127.0.0.1", port_of(each))) for each in (server, over_tls)]
    half = socket.create_connection(("127.0.0.1", port_of(over_tls)))
    half.sendall(CLIENT_HELLO_BEGINS)
    for peer in (*silent, half):
        with peer:
            peer.settimeout(2 * HANDSHAKE_S)
            while peer.recv(4096):  # the plain-text port greets first
                pass
            assert time.monotonic() - began < 1.5 * HANDSHAKE_S


@pytest.mark.scenario(24)
def test_a_peer_that_only_pings_is_hung_up_on(server: Program) -> None:
    """Scenario 24: ping flood; GOAWAY too_many_pings."""

    async def flood() -> bytes:
        connection = await Connection.open(port_of(server))
        async with asyncio.timeout(10.0):
            while not connection.closed.is_set():
                connection.send(PING, 0, 0, bytes(8))
                await asyncio.sleep(0.001)
        return connection.goaway

    assert b"too_many_pings" in asyncio.run(flood())
