"""Certificates that change while a run goes on: renewed, replaced, revoked, expired; nothing is restarted."""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from fkd_client.tls import ClientTls
from fkd_common.access.roles import Role
from fkd_common.errors import UnauthenticatedError, UnreachableError
from fkd_server.access.certificates import CertificateAuthority
from fkd_server.access.records import revoke
from fkd_server.access.revocation import REVOKED_FILE, RevokedList
from fkd_server.access.tls import ServerTls
from fkd_server.grpc_polls import RECHECK_S
from tests.scenario_table import Seen
from tests.server.tiny import TinyRun

from .conftest import HOSTS, Pki
from .serving import connected, refused, register, serving, site, until


def shown_by(address: str) -> int:
    """The serial number of the certificate that a coordinator shows to a new connection."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


class MovableClock:
    """A wall clock that can be moved."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


def swap(folder: Path, fresh: Path) -> None:
    """Replace a client's files, one after the other, as a person copying them would."""
    for name in ("ca.pem", "key.pem", "cert.pem"):
        (fresh / name).replace(folder / name)


@pytest.mark.scenario(31)
def test_a_renewed_coordinators_certificate_is_shown_to_new_connections(
    run: TinyRun, pki: Pki, seen: Seen
) -> None:
    """Scenario 31, rotation mid-run: open connections go on, new ones see the new certificate, no restart."""
    tls = pki.client("a")
    with serving(run, ServerTls(pki.folder)) as address, connected(address, tls) as transport:
        a = site(transport)
        before = shown_by(address)
        with capture_logs() as logs:
            fresh = pki.authority.renew_server().certificate
            assert shown_by(address) == fresh.serial_number != before
        assert a.poll().HasField("wait")
        with connected(address, pki.client("b")) as another:
            assert register(another) == "run-1"
    assert [line["event"] for line in logs] == ["certificates_renewed"]
    seen("new connections see the new certificate, open ones go on")


@pytest.mark.scenario(31)
def test_a_half_copied_folder_changes_nothing_and_is_said_once(run: TinyRun, pki: Pki) -> None:
    """Scenario 31: whoever replaces certificate and key does it in two steps."""
    with serving(run, ServerTls(pki.folder)) as address:
        before = shown_by(address)
        stranger = pki.holder("stranger")
        (pki.folder / "server.pem").write_bytes((stranger / "cert.pem").read_bytes())
        with capture_logs() as logs:
            assert shown_by(address) == before
            assert shown_by(address) == before
    assert [line["event"] for line in logs] == ["certificates_unusable"]


@pytest.mark.scenario(31)
def test_an_authority_can_be_replaced_while_both_count(
    run: TinyRun, pki: Pki, tmp_path: Path, seen: Seen
) -> None:
    """Scenario 31, rotation of the CA: for a while ca.pem holds both, then only the new one."""
    old_site = pki.holder("a")
    fresh = CertificateAuthority.create(tmp_path / "fresh", HOSTS)
    new_ca = (tmp_path / "fresh/ca.pem").read_bytes()
    with serving(run, ServerTls(pki.folder)) as address:
        both = (pki.folder / "ca.pem").read_bytes() + new_ca
        (pki.folder / "ca.pem").write_bytes(both)
        fresh.issue_folder(Role.CLIENT, "b", tmp_path / "b")
        (tmp_path / "b/ca.pem").write_bytes(both)
        for folder in (old_site, tmp_path / "b"):
            with connected(address, ClientTls(folder)) as transport:
                assert register(transport) == "run-1"
        for name in ("server.pem", "server.key"):
            (tmp_path / "fresh" / name).replace(pki.folder / name)
        (pki.folder / "ca.pem").write_bytes(new_ca)
        with connected(address, ClientTls(tmp_path / "b")) as transport:
            assert register(transport) == "run-1"
        error = refused(address, ClientTls(old_site))
    assert error.reason == "SERVER_NOT_TRUSTED"
    seen("both authorities count, then only the new one")


@pytest.mark.scenario(31)
def test_a_client_whose_certificate_ends_goes_on_with_a_renewed_one(
    run: TinyRun, pki: Pki, seen: Seen
) -> None:
    """Scenario 31: the connection stays open past the end of its certificate, is refused, and made anew."""
    clock = MovableClock()
    folder = pki.holder("a", days=1)
    with (
        serving(run, ServerTls(pki.folder, clock)) as address,
        connected(address, ClientTls(folder)) as transport,
    ):
        a = site(transport)
        clock.ahead = timedelta(days=2)
        with pytest.raises(UnauthenticatedError, match="expired") as refusal:
            a.poll()
        swap(folder, pki.holder("a", days=30, folder="renewed"))
        with pytest.raises(UnreachableError, match="renewed credentials"):  # so that the session tries again
            a.poll()
        assert a.poll().HasField("wait")
    assert refusal.value.reason == "CERTIFICATE_EXPIRED"
    seen(f"{refusal.value.reason}, then the session goes on")


@pytest.mark.scenario(31)
def test_credentials_of_somebody_else_are_not_taken_for_renewed_ones(run: TinyRun, pki: Pki) -> None:
    clock = MovableClock()
    folder = pki.holder("a", days=1)
    with (
        serving(run, ServerTls(pki.folder, clock)) as address,
        connected(address, ClientTls(folder)) as transport,
    ):
        a = site(transport)
        clock.ahead = timedelta(days=2)
        swap(folder, pki.holder("b", days=30))
        with pytest.raises(UnauthenticatedError, match="of a expired"):
            a.poll()


@pytest.mark.scenario(15, 31)
def test_a_revoked_certificate_ends_open_connections_and_opens_no_new_ones(
    run: TinyRun, pki: Pki, seen: Seen
) -> None:
    """Scenarios 15, 31: from the next call on; other clients go on."""
    a_tls, b_tls = pki.client("a"), pki.client("b")
    with (
        serving(run, ServerTls(pki.folder)) as address,
        connected(address, a_tls) as a_transport,
        connected(address, b_tls) as b_transport,
    ):
        a, b = site(a_transport), site(b_transport)
        assert len(revoke(pki.folder, "a")) == 1
        with pytest.raises(UnauthenticatedError) as error:
            a.poll()
        again = refused(address, a_tls)
        assert b.poll().HasField("wait")
        with connected(address, ClientTls(pki.holder("a", folder="a-again"))) as transport:
            assert register(transport) == "run-1"  # the name is free for a new certificate
    assert error.value.reason == again.reason == "CERTIFICATE_REVOKED"
    assert "ask the coordinator's operator" in str(again)
    seen(f"UNAUTHENTICATED {again.reason}")


def test_a_held_poll_ends_when_its_certificate_is_revoked(run: TinyRun, pki: Pki) -> None:
    """Scenario 31: within a few seconds, not when the poll would have ended."""
    with serving(run, ServerTls(pki.folder)) as address, connected(address, pki.client("a")) as transport:
        a = site(transport)
        with ThreadPoolExecutor(1) as pool:
            held = pool.submit(a.poll, 30.0)
            until(lambda: run.coordinator.attendance.clients["a"].ready)
            revoke(pki.folder, "a")
            error = held.exception(timeout=RECHECK_S + 5.0)
    assert isinstance(error, UnauthenticatedError)


def test_a_list_of_revoked_certificates_may_be_written_by_hand(tmp_path: Path) -> None:
    revoked = RevokedList(tmp_path)
    assert 0xAB12 not in revoked
    (tmp_path / REVOKED_FILE).write_text("# lost laptops\n\nAB:12  # of a\n")
    assert 0xAB12 in revoked
    assert 0xAB13 not in revoked


def test_what_was_revoked_stays_so_when_the_list_cannot_be_read(tmp_path: Path) -> None:
    revoked = RevokedList(tmp_path)
    revoked.add(0xAB12, "client a")
    assert 0xAB12 in revoked
    (tmp_path / REVOKED_FILE).write_text("ab12\nnonsense\n")
    with capture_logs() as logs:
        assert 0xAB12 in revoked
        assert 0xAB12 in revoked
    assert [line["event"] for line in logs] == ["revoked_list_unreadable"]
    (tmp_path / REVOKED_FILE).unlink()
    assert 0xAB12 in revoked


def test_a_list_without_a_last_line_break_loses_no_revocation(tmp_path: Path) -> None:
    """Two numbers run together would revoke neither."""
    (tmp_path / REVOKED_FILE).write_text("ab12")
    RevokedList(tmp_path).add(0xCD34, "client b")
    revoked = RevokedList(tmp_path)
    assert 0xAB12 in revoked
    assert 0xCD34 in revoked


def test_an_unreadable_list_at_the_start_lets_nobody_in(tmp_path: Path) -> None:
    """Failing open would make a typing error undo every revocation."""
    (tmp_path / REVOKED_FILE).write_text("nonsense\n")
    with pytest.raises(UnauthenticatedError, match="list of revoked"):
        _ = 1 in RevokedList(tmp_path)
