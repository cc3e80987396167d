"""Who may look at the second port."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fkd_common.access.certificates import CLIENT_FILES, Credentials
from fkd_common.access.roles import Role
from fkd_common.errors import BusyError, UsageError
from fkd_server.access.records import revoke
from fkd_server.access.tls import ServerTls
from fkd_server.web.access import COOKIE, COOKIE_S, Gate, Guesses
from fkd_server.web.limits import WebLimits
from fkd_server.web.look_token import LookToken
from tests.security.conftest import Pki
from tests.server.tiny import TinyRun

from .showing import EVERYWHERE, TOKEN, Shown, showing

PRIVATE = (
    "/",
    "/metrics",
    "/api/status",
    "/api/rounds",
    "/api/ledger",
    "/api/events",
    "/api/stream",
    "/download/ledger.csv",
    "/download/clients.csv",
)
OPEN = ("/livez", "/readyz", "/login", "/static/theme.js")


def browser(folder: Path) -> ssl.SSLContext:
    """What holds the certificate in a folder."""
    context = trusting(Credentials.read(folder, CLIENT_FILES).ca)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


def trusting(ca: bytes) -> ssl.SSLContext:
    """What trusts an authority and has no certificate."""
    return ssl.create_default_context(cadata=ca.decode())


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "127.0.0.1:{port}", "[::1]:{port}", "LOCALHOST:8"]
)
def test_on_loopback_this_machine_may_look(run: TinyRun, host: str) -> None:
    with showing(run) as shown:
        assert shown.ask("/api/status", Host=host.format(port=shown.port)).status == 200


@pytest.mark.parametrize("path", [*PRIVATE, *OPEN])
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::1"]
)
def test_on_loopback_a_page_that_resolves_its_own_name_to_this_machine_sees_nothing(
    run: TinyRun, path: str, host: str
) -> None:
    with showing(run) as shown:
        answer = shown.ask(path, Host=host)
    assert answer.status in (400, 403)
    assert b"run-1" not in answer.body


@pytest.mark.parametrize("path", PRIVATE)
def test_beyond_loopback_nothing_of_the_run_is_shown_without_proof(run: TinyRun, path: str) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        bare = shown.ask(path)
        wrong = shown.ask(path, Authorization="Bearer " + TOKEN[::-1])
        other = shown.ask(path, Authorization="Basic " + TOKEN)
        cookie = shown.ask(path, Cookie=f"{COOKIE}={int(shown.clocks.wall) + 100}.{'0' * 64}")
    assert {bare.status, wrong.status, other.status, cookie.status} == {401}
    assert bare.headers["WWW-Authenticate"].startswith("Bearer")
    assert b"run-1" not in bare.body + wrong.body + other.body + cookie.body


@pytest.mark.parametrize("path", OPEN)
def test_beyond_loopback_probes_and_the_form_are_for_anyone(run: TinyRun, path: str) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        answer = shown.ask(path)
    assert answer.status == 200
    assert b"run-1" not in answer.body


@pytest.mark.parametrize("path", [path for path in PRIVATE if path != "/api/stream"])
def test_the_token_lets_programs_in(run: TinyRun, path: str) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        assert shown.look(path).status == 200


def log_in(shown: Shown, token: str, **headers: str) -> tuple[int, str, str]:
    """Send the form; status, where it leads, and the cookie."""
    form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    answer = shown.ask("/login", "POST", f"token={token}", **form)
    return answer.status, answer.headers.get("Location", ""), answer.headers.get("Set-Cookie", "")


def test_a_browser_is_sent_to_the_form_and_keeps_a_cookie_that_scripts_cannot_read(run: TinyRun) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        sent = shown.ask("/", Accept="text/html,*/*")
        assert (sent.status, sent.headers["Location"]) == (303, "/login")
        status, place, cookie = log_in(shown, TOKEN)
        assert (status, place) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={COOKIE_S}"} <= set(cookie.split("; "))
        assert TOKEN not in cookie
        kept = cookie.split(";")[0]
        assert shown.ask("/api/status", Cookie=kept).status == 200
        shown.clocks.wall += COOKIE_S + 1
        assert shown.ask("/api/status", Cookie=kept).status == 401


def test_a_cookie_outlives_a_restart_and_ends_with_its_token(run: TinyRun) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        _, _, cookie = log_in(shown, TOKEN)
    with showing(run, EVERYWHERE, TOKEN) as shown:
        assert shown.ask("/api/status", Cookie=cookie.split(";")[0]).status == 200
    with showing(run, EVERYWHERE, TOKEN[::-1]) as shown:
        assert shown.ask("/api/status", Cookie=cookie.split(";")[0]).status == 401


@pytest.mark.parametrize(
    "cookie",
    ["", ".", "9" * 400, f"{10**11}.{'0' * 64}", "²3." + "0" * 64, f"{10**11}.\udcff", "-1." + "0" * 64],
)
def test_a_cookie_that_is_none_of_ours_counts_for_nothing(cookie: str) -> None:
    gate = Gate(EVERYWHERE, LookToken(TOKEN), None)
    assert not gate.holds_cookie(cookie)


def test_a_cookie_whose_end_was_moved_counts_for_nothing(run: TinyRun) -> None:
    gate = Gate(EVERYWHERE, LookToken(TOKEN), None, wall_clock=lambda: 1e9)
    ends, _, signature = gate.cookie().partition(".")
    assert gate.holds_cookie(f"{ends}.{signature}")
    assert not gate.holds_cookie(f"{int(ends) + 1}.{signature}")


def test_a_wrong_token_in_the_form_leads_back_to_it_and_is_in_the_log(run: TinyRun) -> None:
    with capture_logs() as lines, showing(run, EVERYWHERE, TOKEN) as shown:
        assert log_in(shown, TOKEN[::-1])[:2] == (303, "/login#refused")
        shown.ask("/metrics", Authorization="Bearer wrong")
    refused = [line for line in lines if line["event"] == "look_refused"]
    assert [(line["path"], line["reason"]) for line in refused] == [
        ("/login", "WRONG_TOKEN"),
        ("/metrics", "WRONG_TOKEN"),
    ]
    assert refused[0]["address"] == "127.0.0.1"
    assert TOKEN[::-1] not in str(lines)


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/json", "%"])
def test_what_is_not_the_form_is_refused(run: TinyRun, kind: str) -> None:
    with showing(run, EVERYWHERE, TOKEN) as shown:
        assert shown.ask("/login", "POST", f"token={TOKEN}", Content_Type=kind).status == 400


QUICK = WebLimits(wrong_guess_s=0.2)


def test_wrong_guesses_have_to_wait(run: TinyRun) -> None:
    with showing(run, EVERYWHERE, TOKEN, limits=QUICK) as shown:
        statuses = [log_in(shown, "wrong")[0] for _ in range(5)]
        assert statuses == [303, 303, 303, 303, 429]
        began = time.monotonic()
        assert shown.ask("/metrics", Authorization="Bearer wrong").status == 429
        assert time.monotonic() - began >= QUICK.wrong_guess_s
        shown.clocks.monotonic += 3.0
        assert shown.ask("/metrics", Authorization="Bearer wrong").status == 401


def test_the_right_token_is_let_in_whatever_else_comes_from_its_address(run: TinyRun) -> None:
    """Or one bad neighbour behind the same proxy would keep Prometheus out."""
    with showing(run, EVERYWHERE, TOKEN, limits=QUICK) as shown:
        for _ in range(5):
            log_in(shown, "wrong")
        assert log_in(shown, "wrong")[0] == 429
        assert shown.look("/metrics").status == 200
        for _ in range(5):
            log_in(shown, "wrong")
        assert log_in(shown, "wrong")[0] == 429
        assert log_in(shown, TOKEN)[0] == 303


@pytest.mark.parametrize("path", PRIVATE)
def test_a_token_is_needed_on_loopback_too_if_there_is_one(run: TinyRun, path: str) -> None:
    with showing(run, token=TOKEN) as shown:
        refused = shown.ask(path)
        assert refused.status == 401
        assert b"run-1" not in refused.body
        if path != "/api/stream":
            assert shown.look(path).status == 200


def test_with_a_token_on_loopback_probes_the_form_and_other_hosts_are_as_ever(run: TinyRun) -> None:
    with showing(run, token=TOKEN) as shown:
        assert {shown.ask(path).status for path in OPEN} == {200}
        assert shown.ask("/", Accept="text/html").headers["Location"] == "/login"
        assert shown.ask("/api/status", Cookie=log_in(shown, TOKEN)[2].split(";")[0]).status == 200
        for path in (*PRIVATE, *OPEN):
            assert shown.look(path, Host="evil.example").status == 403


def test_a_token_that_is_replaced_in_its_file_counts_from_then_on(run: TinyRun, tmp_path: Path) -> None:
    file, other = tmp_path / "token", TOKEN[::-1]
    file.write_text(TOKEN)
    with capture_logs() as lines, showing(run, EVERYWHERE, f"@{file}") as shown:
        cookie = log_in(shown, TOKEN)[2].split(";")[0]
        assert shown.ask("/api/status", Cookie=cookie).status == 200
        (tmp_path / "new").write_text(other)
        (tmp_path / "new").rename(file)
        assert shown.look("/api/status").status == 401
        assert shown.ask("/api/status", Cookie=cookie).status == 401
        assert shown.ask("/api/status", Authorization=f"Bearer {other}").status == 200
    assert [line["event"] for line in lines if line["event"].startswith("token_")] == ["token_renewed"]
    assert TOKEN not in str(lines)
    assert other not in str(lines)


@pytest.mark.parametrize("spoil", ["gone", "short"])
def test_a_token_file_that_holds_none_leaves_the_token_as_it_was(
    run: TinyRun, tmp_path: Path, spoil: str
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with capture_logs() as lines, showing(run, EVERYWHERE, f"@{file}") as shown:
        file.unlink() if spoil == "gone" else file.write_text("short")
        assert [shown.look("/api/status").status for _ in range(3)] == [200, 200, 200]
        file.write_text(TOKEN[::-1])
        assert shown.look("/api/status").status == 401
    said = [line["event"] for line in lines if line["event"].startswith("token_")]
    assert said == ["token_unusable", "token_renewed"]


def test_what_is_refused_again_and_again_leaves_a_few_lines(run: TinyRun) -> None:
    with capture_logs() as lines, showing(run, EVERYWHERE, TOKEN) as shown:
        connection = shown.connect()
        for _ in range(300):
            connection.request("GET", "/api/status")
            assert connection.getresponse().read()
        connection.close()
    assert 3 <= len([line for line in lines if line["event"] == "look_refused"]) <= 6


def test_each_guess_waits_longer_and_nobody_else_does() -> None:
    now = 0.0
    guesses = Guesses(lambda: now)
    for _ in range(30):
        guesses.wrong("10.0.0.1")
    guesses.check("10.0.0.2")
    now = 59.0
    with pytest.raises(BusyError, match="try again in 1 s"):
        guesses.check("10.0.0.1")
    now = 60.0
    guesses.check("10.0.0.1")


def test_an_operators_certificate_lets_in_until_it_is_revoked(run: TinyRun, pki: Pki) -> None:
    tls = ServerTls(pki.folder)
    operator = browser(pki.holder("alice", Role.OPERATOR))
    with showing(run, EVERYWHERE, None, tls) as shown:
        connection = shown.connect(operator)
        connection.request("GET", "/api/status")
        answer = connection.getresponse()
        assert (answer.status, b"run-1" in answer.read()) == (200, True)
        revoke(pki.folder, "alice")
        connection.request("GET", "/api/status")
        refused = connection.getresponse()
        assert (refused.status, b"revoked" in refused.read()) == (401, True)
        connection.close()


def test_a_sites_certificate_does_not_let_in_but_the_token_does(run: TinyRun, pki: Pki) -> None:
    tls, site = ServerTls(pki.folder), browser(pki.holder("site-a"))
    with showing(run, EVERYWHERE, TOKEN, tls) as shown:
        refused = shown.ask("/api/status", tls=site)
        assert (refused.status, refused.json["reason"]) == (403, "NOT_AN_OPERATOR")
        assert shown.ask("/api/status", tls=site, Authorization=f"Bearer {TOKEN}").status == 200


def test_over_tls_probes_need_no_certificate(run: TinyRun, pki: Pki) -> None:
    tls = ServerTls(pki.folder)
    with showing(run, EVERYWHERE, None, tls) as shown:
        stranger = trusting(tls.trusted())
        assert shown.ask("/livez", tls=stranger).status == 200
        assert shown.ask("/api/status", tls=stranger).status == 401
        assert (
            shown.ask("/", tls=stranger, Accept="text/html").status == 401
        )  # there is no token to log in with


def test_the_cookie_stays_on_https_where_there_is_tls(run: TinyRun, pki: Pki) -> None:
    tls = ServerTls(pki.folder)
    with showing(run, EVERYWHERE, TOKEN, tls) as shown:
        form = {"Content_Type": "application/x-www-form-urlencoded"}
        answer = shown.ask("/login", "POST", f"token={TOKEN}", tls=trusting(tls.trusted()), **form)
    assert "Secure" in answer.headers["Set-Cookie"].split("; ")


def test_certificates_of_another_authority_are_turned_away(run: TinyRun, pki: Pki, tmp_path: Path) -> None:
    stranger = Pki(tmp_path / "another").holder("alice", Role.OPERATOR)
    context = trusting(ServerTls(pki.folder).trusted())
    context.load_cert_chain(stranger / "cert.pem", stranger / "key.pem")
    with (
        showing(run, EVERYWHERE, TOKEN, ServerTls(pki.folder)) as shown,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        shown.ask("/api/status", tls=context)


def test_without_any_proof_to_ask_for_nothing_is_served_beyond_loopback() -> None:
    with pytest.raises(UsageError, match="--http-token"):
        Gate(EVERYWHERE, None, None)


@pytest.mark.parametrize("given", ["short", "x" * 15, "two words of a long token", "ü" * 20, "x" * 600, ""])
def test_a_token_that_is_no_secret_is_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(UsageError) as error:
        LookToken(given)
    assert not given or given not in str(error.value)


def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert LookToken(f"@{tmp_path / 'token'}").current() == TOKEN
    with pytest.raises(UsageError, match="cannot be read"):
        LookToken(f"@{tmp_path / 'none'}")
