"""What is said of an address where something else answers, or nothing: certain where it ends a client, else silent."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fkd_common.access.handshake import why_plain_text_fails, why_tls_fails
from fkd_common.access.join_token import PREFIX, decode_token
from fkd_common.errors import UnauthenticatedError, UsageError
from tests.scenario_table import Seen

from .conftest import Pki

Behaviour = Callable[[socket.socket], object]


@contextmanager
def listening(behave: Behaviour) -> Iterator[str]:
    """Something on a port that does this with every connection; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):  # whoever connected may hang up
                    behave(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def hang_up(connection: socket.socket) -> None:
    """As an ssh tunnel does whose far end is down."""


def read_and_hang_up(connection: socket.socket) -> None:
    connection.recv(4096)


def say_nothing(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


def talk_ssh(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
    say_nothing(connection)


def talk_http(connection: socket.socket) -> None:
    connection.recv(4096)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


@pytest.mark.scenario(33)
@pytest.mark.parametrize("behave", [hang_up, read_and_hang_up, say_nothing])
def test_what_may_pass_ends_no_client(pki: Pki, behave: Behaviour) -> None:
    """Scenario 33: a tunnel without a far end, a coordinator that is just starting or overloaded: try again."""
    credentials = pki.client("a").credentials
    with listening(behave) as address:
        assert not isinstance(why_tls_fails(address, credentials), UnauthenticatedError)
        assert why_plain_text_fails(address) is None


@pytest.mark.scenario(32)
@pytest.mark.parametrize("behave", [talk_ssh, talk_http])
def test_another_service_on_the_port_is_no_coordinator(pki: Pki, behave: Behaviour, seen: Seen) -> None:
    """Scenario 32."""
    with listening(behave) as address:
        error = why_tls_fails(address, pki.client("a").credentials)
        assert why_plain_text_fails(address) is None
    assert error is not None
    assert error.reason == "NO_TLS"
    seen(error.reason)


def test_nobody_there_is_no_answer(pki: Pki) -> None:
    assert why_tls_fails("127.0.0.1:1", pki.client("a").credentials) is None
    assert why_plain_text_fails("127.0.0.1:1") is None


@given(
    st.one_of(st.text(), st.text(alphabet=st.characters(max_codepoint=127)).map(lambda text: PREFIX + text))
)
def test_whatever_is_pasted_is_a_token_or_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        decode_token(text)
