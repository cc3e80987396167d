"""What callers of the second port may hold: connections, half requests, answers that nobody takes."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fkd_server.access.tls import ServerTls
from fkd_server.web.connections import YOUNG_S, Doors
from fkd_server.web.limits import WebLimits
from tests.security.conftest import Pki
from tests.server.tiny import TinyRun

from .showing import EVERYWHERE, TOKEN, Shown, showing, until
from .test_access import trusting

QUICK = WebLimits(connections=8, watchers=2, handshake_s=0.5, idle_s=0.5, answer_s=0.5)


def raw(shown: Shown, sends: bytes = b"") -> socket.socket:
    """A connection that sends so much and waits."""
    connection = socket.create_connection(("127.0.0.1", shown.port), timeout=10.0)
    connection.sendall(sends)
    return connection


def held(shown: Shown) -> int:
    """Connections that a second port holds, as the system sees them."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{shown.port:04X}") and row[3] == "01" for row in rows)


def closed(connection: socket.socket) -> bool:
    """Read to the end of a connection; False if it goes on."""
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "sends", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n"]
)
def test_a_request_that_does_not_get_on_ends_its_connection(run: TinyRun, sends: bytes) -> None:
    with showing(run, limits=QUICK) as shown, raw(shown, sends) as connection:
        assert closed(connection)


def test_a_head_sent_byte_by_byte_ends_its_connection_all_the_same(run: TinyRun) -> None:
    with showing(run, limits=QUICK) as shown, raw(shown, b"GET /livez HTTP/1.1\r\nX: ") as connection:
        connection.settimeout(0.05)
        until_s = time.monotonic() + 10.0
        while time.monotonic() < until_s:
            try:
                connection.sendall(b"a")
                if not connection.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it went on")


def test_a_form_whose_end_does_not_come_ends_its_connection(run: TinyRun) -> None:
    head = (
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        b"Content-Length: 100\r\n\r\ntoken="
    )
    with showing(run, limits=QUICK) as shown, raw(shown, head) as connection:
        assert closed(connection)


def test_answers_that_nobody_takes_end_their_connection(run: TinyRun) -> None:
    for number in range(300):
        run.site(f"site-{number:03}")
    ask = b"GET /api/status HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with showing(run, limits=QUICK) as shown:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10.0)
        connection.connect(("127.0.0.1", shown.port))
        connection.sendall(ask * 40)  # some 5 MB
        until(lambda: held(shown) == 1)
        until(lambda: held(shown) == 0)  # without a read: whoever reads is served
        assert closed(connection)
        connection.close()
        assert shown.ask("/livez").status == 200


@pytest.mark.parametrize("tls", [False, True])
def test_whoever_opens_many_connections_closes_its_own(run: TinyRun, pki: Pki, tls: bool) -> None:
    credentials = ServerTls(pki.folder) if tls else None
    context = trusting(credentials.trusted()) if credentials else None
    slow = WebLimits(connections=8)
    with showing(run, EVERYWHERE, TOKEN, credentials, slow) as shown:
        trusted = shown.connect(context)
        trusted.request("GET", "/api/status", headers={"Authorization": f"Bearer {TOKEN}"})
        assert trusted.getresponse().read()
        crowd = [raw(shown) for _ in range(30)]
        assert shown.ask("/livez", tls=context).status == 200
        gone = [each for each in crowd[:20] if closed(each)]
        assert len(gone) == 20
        trusted.request("GET", "/api/status", headers={"Authorization": f"Bearer {TOKEN}"})
        assert trusted.getresponse().status == 200
        trusted.close()
        for each in crowd:
            each.close()


def test_a_handshake_that_does_not_get_on_ends(run: TinyRun, pki: Pki) -> None:
    with showing(run, EVERYWHERE, TOKEN, ServerTls(pki.folder), QUICK) as shown, raw(shown) as connection:
        assert closed(connection)


def test_plain_text_on_a_tls_port_ends(run: TinyRun, pki: Pki) -> None:
    with (
        showing(run, EVERYWHERE, TOKEN, ServerTls(pki.folder)) as shown,
        raw(shown, b"GET /livez HTTP/1.1\r\n\r\n") as connection,
    ):
        assert closed(connection)


def shown_certificate(shown: Shown, tls: ServerTls) -> bytes:
    """The certificate that a new connection is given."""
    with (
        socket.create_connection(("127.0.0.1", shown.port), timeout=10.0) as connection,
        trusting(tls.trusted()).wrap_socket(connection, server_hostname="localhost") as secure,
    ):
        certificate = secure.getpeercert(binary_form=True)
    assert certificate
    return certificate


def test_new_connections_are_given_the_renewed_certificate(run: TinyRun, pki: Pki) -> None:
    tls = ServerTls(pki.folder)
    with showing(run, EVERYWHERE, TOKEN, tls) as shown:
        first = shown_certificate(shown, tls)
        pki.authority.renew_server()
        second = shown_certificate(shown, tls)
        assert first != second
        assert ssl.DER_cert_to_PEM_cert(second).strip() in (pki.folder / "server.pem").read_text()


def test_files_that_do_not_fit_together_leave_the_certificate_as_it_was(
    run: TinyRun, pki: Pki, tmp_path: Path
) -> None:
    tls, other = ServerTls(pki.folder), Pki(tmp_path / "another")
    with showing(run, EVERYWHERE, TOKEN, tls) as shown:
        first = shown_certificate(shown, tls)
        shutil.copy(other.folder / "server.key", pki.folder / "server.key")
        assert shown_certificate(shown, tls) == first
        until(lambda: shown.ask("/livez", tls=trusting(tls.trusted())).status == 200)


class Line(asyncio.Transport):
    """The coordinator's end of a connection from somewhere."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__({"peername": (host, port)})
        self.open = True

    def abort(self) -> None:
        self.open = False

    def is_closing(self) -> bool:
        return not self.open

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass


@dataclass
class Entrance:
    """Doors for ten, and who has come."""

    now: float = 0.0

    def __post_init__(self) -> None:
        self.doors = Doors(asyncio.Protocol, None, WebLimits(connections=10), lambda: self.now)
        self._port = 0

    def come(self, host: str) -> Line:
        self._port += 1
        line = Line(host, self._port)
        self.doors().connection_made(line)
        return line


def test_a_crowd_of_one_address_makes_room_before_anybody_else() -> None:
    at = Entrance()
    old = at.come("10.0.0.1")
    at.now += 100.0
    crowd = [at.come("10.9.9.9") for _ in range(30)]
    assert old.open
    assert [line.open for line in crowd] == [False] * 21 + [True] * 9
    newcomer = at.come("10.0.0.2")
    assert (old.open, newcomer.open, crowd[21].open) == (True, True, False)


def test_whoever_has_just_come_stays_for_a_moment() -> None:
    at = Entrance()
    first = [at.come(f"10.0.0.{number}") for number in range(10)]
    assert not at.come("10.0.1.1").open
    assert all(line.open for line in first)
    at.now += YOUNG_S
    assert at.come("10.0.1.2").open
    assert [line.open for line in first] == [False] + [True] * 9


def test_whoever_has_shown_that_it_may_look_stays() -> None:
    at = Entrance()
    lines = [at.come("10.0.0.1") for _ in range(10)]
    for line in lines:
        at.doors.trust(line)
    at.now += 100.0
    assert not at.come("10.0.0.2").open
    assert all(line.open for line in lines)
