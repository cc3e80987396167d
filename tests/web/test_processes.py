"""The second port of real coordinators: where it listens, when it is ready, and how programs end without it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from fkd_common.errors import ExitCode
from fkd_common.rpc import METHODS
from fkd_server.access.tls import ServerTls
from tests.client_network.coordinator import write_prepared
from tests.e2e.programs import Launcher, Program
from tests.security.conftest import Pki

from .showing import PATIENCE_S, TOKEN, until
from .test_access import trusting

pytestmark = pytest.mark.e2e

RUN = ["--min-clients", "1", "--min-cohort", "1", "--rounds", "1", "--hidden", "8", "--dropout", "0.1"]

Start = Callable[..., Program]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prepared(tmp_path_factory.mktemp("web") / "prepared")


@pytest.fixture
def start(tmp_path: Path, prepared: Path) -> Iterator[Start]:
    launcher = Launcher(tmp_path, tmp_path / "cache", prepared)

    def start(*flags: str, port: int = 0, run_id: str = "run") -> Program:
        places = ["--prepared", str(prepared), "--runs", str(tmp_path / "runs"), "--run-id", run_id]
        return launcher.start("server", ["fkd_server.cli", *places, "--port", str(port), *RUN, *flags])

    try:
        yield start
    finally:
        launcher.stop()


def ask(address: str, path: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(f"http://{address}{path}", headers=headers), timeout=10
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free now."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            first: int = probe.getsockname()[1]
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
            return first
        except OSError:
            continue


def test_the_port_is_said_and_answers(start: Start) -> None:
    address = start().wait_for("serving")["http"]
    assert ask(address, "/readyz") == (200, "ok\n")
    assert json.loads(ask(address, "/api/status")[1])["run_id"] == "run"
    assert "fkd_run_info{" in ask(address, "/metrics")[1]
    assert "</html>" in ask(address, "/")[1]


def test_by_default_it_is_the_second_after_the_main_port(start: Start) -> None:
    main = free_ports(3)
    assert start(port=main).wait_for("serving")["http"] == f"127.0.0.1:{main + 2}"


def test_a_default_port_that_is_taken_is_said_once_and_used_when_it_is_free(start: Start) -> None:
    main = free_ports(3)
    with socket.create_server(("127.0.0.1", main + 2)):
        server = start(port=main)
        assert server.wait_for("serving")["http"] is None
        assert "--http-port" in server.wait_for("http_port_taken")["detail"]
    address = server.wait_for("http_port_open")["http"]
    assert address == f"127.0.0.1:{main + 2}"
    assert ask(address, "/readyz") == (200, "ok\n")
    assert "fkd_run_info{" in ask(address, "/metrics")[1]
    server.signal(signal.SIGTERM)
    assert server.end() == ExitCode.OK
    assert server.stderr.count("http_port_taken") == 1


def test_a_coordinator_ends_while_it_waits_for_its_port(start: Start) -> None:
    main = free_ports(3)
    with socket.create_server(("127.0.0.1", main + 2)):
        server = start(port=main)
        server.wait_for("serving")
        server.signal(signal.SIGTERM)
        assert server.end() == ExitCode.OK
    assert "Traceback" not in server.stderr


def test_no_counter_goes_on_after_a_kill_from_where_it_was_not(start: Start) -> None:
    """The ledger has forgotten its last seconds: Prometheus must see counters that began anew, not ones that fell."""
    server = start()
    said = server.wait_for("serving")
    with grpc.insecure_channel(said["address"]) as channel:
        for _ in range(50):
            with contextlib.suppress(grpc.RpcError):
                channel.unary_unary(METHODS["Heartbeat"].path)(b"x", timeout=10.0)
    before = counters(ask(said["http"], "/metrics")[1])
    server.signal(signal.SIGKILL)
    server.end()
    again = start().wait_for("serving")
    after = counters(ask(again["http"], "/metrics")[1])
    assert before["fkd_wasted_bytes_total"] > 0
    assert {name: value for name, value in after.items() if value} == {}


def counters(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line.startswith("fkd_") and "_total" in line]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_port_that_was_asked_for_and_is_taken_ends_the_program(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = start("--http-port", str(taken.getsockname()[1]))
        assert server.end() == ExitCode.PORT_IN_USE
    assert "--http-port" in server.stderr
    assert "Traceback" not in server.stderr


def test_there_need_not_be_one(start: Start) -> None:
    assert start("--http-port", "0").wait_for("serving")["http"] is None


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--http-host", "0.0.0.0"], "--http-token"),
        (["--http-host", "0.0.0.0", "--http-token", TOKEN], "--insecure"),
        (["--http-token", "short"], "--http-token"),
        (["--http-host", "192.0.2.1", "--http-token", TOKEN, "--insecure"], "--http-host 192.0.2.1"),
        (["--http-token", "@/nowhere"], "/nowhere"),
    ],
)
def test_what_would_show_the_run_to_everybody_is_refused(start: Start, flags: list[str], says: str) -> None:
    server = start(*flags)
    assert server.end() == ExitCode.USAGE
    assert says in server.stderr
    assert len(server.stderr.splitlines()) == 1


def test_a_token_is_never_in_the_log(start: Start, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    server = start("--http-token", f"@{tmp_path / 'token'}", "--http-host", "0.0.0.0", "--insecure")
    port = server.wait_for("serving")["http"].rpartition(":")[2]
    assert ask(f"127.0.0.1:{port}", "/api/status")[0] == 401
    assert ask(f"127.0.0.1:{port}", "/api/status", TOKEN)[0] == 200
    assert ask(f"127.0.0.1:{port}", "/api/status", TOKEN[::-1])[0] == 401
    server.signal(signal.SIGTERM)
    assert server.end() == ExitCode.OK
    assert TOKEN not in server.stderr
    assert TOKEN[::-1] not in server.stderr


def test_readiness_ends_with_the_signal_and_before_the_last_answers(start: Start) -> None:
    """A call that is held keeps the coordinator from ending for its grace; meanwhile probes see it go."""
    server = start()
    said = server.wait_for("serving")
    over = threading.Event()
    with grpc.insecure_channel(said["address"]) as channel:
        held = channel.stream_unary(METHODS["PutChunk"].path).future(one_day(over), timeout=30.0)
        assert ask(said["http"], "/readyz")[0] == 200
        server.signal(signal.SIGTERM)
        until(lambda: ask(said["http"], "/readyz") == (503, "stopping\n"))
        assert ask(said["http"], "/livez")[0] == 200
        held.cancel()
        over.set()
    assert server.end() == ExitCode.OK


def one_day(over: threading.Event) -> Iterator[bytes]:
    """A request that is begun and does not come."""
    over.wait(PATIENCE_S)
    yield b""


NONSENSE = (
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\n\r\n",
    b"X" * 50_000,
    b"POST /login HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
)


def babble(connection: socket.socket, nonsense: bytes) -> None:
    """Send it, say that this was all, and read to the end."""
    with contextlib.suppress(OSError):
        connection.sendall(nonsense + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65536):
            pass


@pytest.mark.parametrize("tls", [False, True])
def test_what_is_no_http_leaves_a_line_at_most_and_no_traceback(start: Start, pki: Pki, tls: bool) -> None:
    flags = ["--tls", str(pki.folder), "--http-host", "0.0.0.0", "--host", "127.0.0.1"] if tls else []
    server = start(*flags)
    port = int(server.wait_for("serving")["http"].rpartition(":")[2])
    context = trusting(ServerTls(pki.folder).trusted())
    for nonsense in NONSENSE:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection:
            babble(connection, nonsense)
        if tls:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=10.0) as connection,
                context.wrap_socket(connection, server_hostname="localhost") as secure,
            ):
                babble(secure, nonsense)
    server.signal(signal.SIGTERM)
    assert server.end() == ExitCode.OK
    assert "Traceback" not in server.stderr
    assert all(line.startswith("{") for line in server.stderr.splitlines()), server.stderr
