"""Mutual TLS between real coordinators and the client's own transport: who gets in, and what the others are told."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import time_machine
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fkd_client.tls import ClientTls
from fkd_common.access.certificates import holder_uri, to_pem
from fkd_common.access.roles import Role
from fkd_common.errors import ForbiddenError, UnauthenticatedError, UnreachableError, UsageError
from fkd_common.rpc import METHODS
from fkd_server.access.certificates import CertificateAuthority, key_pem, new_key
from fkd_server.access.tls import ServerTls
from tests.scenario_table import Seen
from tests.server.tiny import TinyRun

from .conftest import Pki
from .serving import connected, raw_call, refused, register, registration, serving, site


def at(days: float) -> time_machine.travel:
    """A clock that is so many days off, for making certificates."""
    return time_machine.travel(datetime.now(UTC) + timedelta(days=days))


def test_a_client_is_who_its_certificate_names(run: TinyRun, pki: Pki) -> None:
    with (
        serving(run, ServerTls(pki.folder)) as address,
        connected(address, pki.client("shard3")) as transport,
    ):
        assert register(transport) == "run-1"
    assert list(run.coordinator.attendance.clients) == ["shard3"]


def test_a_name_that_agrees_with_the_certificate_is_welcome(run: TinyRun, pki: Pki) -> None:
    with serving(run, ServerTls(pki.folder)) as address, connected(address, pki.client("a")) as transport:
        assert register(transport, "a") == "run-1"


@pytest.mark.scenario(16)
def test_a_client_cannot_register_as_another(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenario 16: the id is the certificate's, never the message's."""
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, pki.client("a"), name="b")
    assert (type(error), error.reason) == (ForbiddenError, "WRONG_IDENTITY")
    assert "leave out --name" in str(error)
    assert not run.coordinator.attendance.clients
    seen(f"PERMISSION_DENIED {error.reason}")


@pytest.mark.scenario(15, 16)
def test_a_client_cannot_use_the_session_of_another(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenarios 15, 16: a stolen session is worth nothing without the certificate it was opened with."""
    with (
        serving(run, ServerTls(pki.folder)) as address,
        connected(address, pki.client("a")) as mine,
        connected(address, pki.client("b")) as theirs,
    ):
        victim, thief = site(mine), site(theirs)
        thief.session = victim.session
        with pytest.raises(ForbiddenError) as error:
            thief.poll()
        assert victim.poll().HasField("wait")
    assert error.value.reason == "WRONG_IDENTITY"
    seen(f"PERMISSION_DENIED {error.value.reason}")


@pytest.mark.scenario(17)
@pytest.mark.parametrize("agent", ["grpc_health_probe/0.4", "kube-probe/1.30", "fkd-operator"])
def test_what_a_caller_calls_its_program_opens_nothing(
    run: TinyRun, pki: Pki, agent: str, seen: Seen
) -> None:
    """Scenario 17: neither the user agent nor other metadata changes who somebody is."""
    metadata = [("x-forwarded-client-cert", "URI=urn:fkd:client:b"), ("fkd-client", "b")]
    with serving(run, ServerTls(pki.folder)) as address:
        code, _ = raw_call(
            address,
            pki.client("a").channel_credentials(),
            METHODS["Register"],
            registration("b"),
            options=[("grpc.primary_user_agent", agent)],
            metadata=metadata,
        )
    assert code is grpc.StatusCode.PERMISSION_DENIED
    seen(f"{agent.partition('/')[0]}: {code.name}")


@pytest.mark.scenario(31)
def test_a_client_of_another_authority_is_told_so(run: TinyRun, pki: Pki, another: Pki, seen: Seen) -> None:
    """Scenario 31, wrong CA, both ways: a folder of another coordinator, and one that trusts this coordinator."""
    foreign, mixed = another.client("a"), another.holder("a", folder="mixed")
    (mixed / "ca.pem").write_bytes((pki.folder / "ca.pem").read_bytes())
    with serving(run, ServerTls(pki.folder)) as address:
        distrusting, distrusted = refused(address, foreign), refused(address, ClientTls(mixed))
    assert (type(distrusting), distrusting.reason) == (UnauthenticatedError, "SERVER_NOT_TRUSTED")
    assert (type(distrusted), distrusted.reason) == (UnauthenticatedError, "CERTIFICATE_NOT_ACCEPTED")
    assert "fkd-server certs issue" in str(distrusted)
    assert not run.coordinator.attendance.clients
    seen(f"{distrusting.reason}, {distrusted.reason}")


@pytest.mark.scenario(31)
def test_a_client_whose_certificate_has_expired_is_told_so(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenario 31, expired."""
    with at(days=-10):
        folder = pki.holder("late", days=5)
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, ClientTls(folder))
    assert (type(error), error.reason) == (UnauthenticatedError, "CERTIFICATE_EXPIRED")
    seen(error.reason)


@pytest.mark.scenario(27, 31)
def test_a_client_whose_certificate_begins_tomorrow_keeps_trying(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenarios 27, 31: not yet valid means that a clock is wrong, and clocks get set."""
    with at(days=1):
        folder = pki.holder("early")
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, ClientTls(folder))
    assert (type(error), error.reason) == (UnreachableError, "CERTIFICATE_NOT_YET_VALID")
    assert "clocks is wrong" in str(error)
    seen(error.reason)


@pytest.mark.scenario(27, 31)
@pytest.mark.parametrize(
    ("days", "reason"),
    [(-1000, "SERVER_CERTIFICATE_EXPIRED"), (2, "SERVER_CERTIFICATE_NOT_YET_VALID")],
)
def test_a_coordinator_outside_its_certificates_period_is_said_so(
    run: TinyRun, pki: Pki, days: float, reason: str, seen: Seen
) -> None:
    """Scenarios 27, 31: the client keeps trying, as an operator can mend it."""
    folder = pki.holder("a")
    with at(days):
        pki.authority.renew_server()
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, ClientTls(folder))
    assert (type(error), error.reason) == (UnreachableError, reason)
    assert "clock" in str(error)
    seen(error.reason)


@pytest.mark.scenario(31)
def test_a_coordinator_under_another_name_is_not_trusted(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenario 31, wrong SAN."""
    folder = pki.holder("a")
    (pki.folder / "server.pem").unlink()
    pki.authority.renew_server(["fkd.example.org"])
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, ClientTls(folder))
    assert (type(error), error.reason) == (UnauthenticatedError, "WRONG_HOST")
    assert "certs renew --host 127.0.0.1" in str(error)
    seen(error.reason)


@pytest.mark.scenario(31)
def test_a_clients_certificate_cannot_pose_as_the_coordinators(run: TinyRun, pki: Pki) -> None:
    """Scenario 31: whoever holds a client's key must not be able to collect other sites' uploads."""
    victim = ClientTls(pki.holder("victim"))
    thief = pki.holder("thief")
    (pki.folder / "server.pem").write_bytes((thief / "cert.pem").read_bytes())
    (pki.folder / "server.key").write_bytes((thief / "key.pem").read_bytes())
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, victim)
    assert isinstance(error, UnauthenticatedError)
    assert not run.coordinator.attendance.clients


@pytest.mark.scenario(15)
@pytest.mark.parametrize(
    "uris", [[], ["urn:fkd:client:a", "urn:fkd:operator:a"], ["urn:fkd:admin:a"], ["urn:fkd:client:../a"]]
)
def test_a_certificate_must_name_exactly_one_holder(
    run: TinyRun, pki: Pki, uris: list[str], seen: Seen
) -> None:
    """Scenario 15: the common name does not count."""
    key = new_key()
    certificate = signed_by_hand(pki.authority, key, [x509.UniformResourceIdentifier(uri) for uri in uris])
    own = grpc.ssl_channel_credentials(to_pem(pki.authority.certificate), key_pem(key), to_pem(certificate))
    with serving(run, ServerTls(pki.folder)) as address:
        code, details = raw_call(address, own, METHODS["Register"], registration())
    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "urn:fkd:client:" in details
    seen("UNAUTHENTICATED NO_IDENTITY")


def signed_by_hand(
    authority: CertificateAuthority, key: ec.EllipticCurvePrivateKey, names: list[x509.GeneralName]
) -> x509.Certificate:
    """A certificate as other software may make it: a common name that promises much, and these other names."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    signer: ec.EllipticCurvePrivateKey = authority._key
    return builder.sign(signer, hashes.SHA256())


def test_certificates_of_other_software_are_as_good(run: TinyRun, pki: Pki, tmp_path: Path) -> None:
    """cert-manager, for one: Kubernetes' file names, and host names beside the URI."""
    folder, key = tmp_path / "secret", new_key()
    folder.mkdir()
    names = [
        x509.DNSName("shard3.fkd.svc"),
        x509.UniformResourceIdentifier(holder_uri(Role.CLIENT, "shard3")),
    ]
    (folder / "tls.crt").write_bytes(to_pem(signed_by_hand(pki.authority, key, names)))
    (folder / "tls.key").write_bytes(key_pem(key))
    (folder / "ca.crt").write_bytes(to_pem(pki.authority.certificate))
    server = tmp_path / "server-secret"
    server.mkdir()
    for theirs, ours in (("tls.crt", "server.pem"), ("tls.key", "server.key"), ("ca.crt", "ca.pem")):
        (server / theirs).write_bytes((pki.folder / ours).read_bytes())
    with serving(run, ServerTls(server)) as address, connected(address, ClientTls(folder)) as transport:
        assert register(transport) == "run-1"
    assert list(run.coordinator.attendance.clients) == ["shard3"]


@pytest.mark.scenario(32)
def test_a_plain_text_client_learns_that_the_coordinator_expects_tls(
    run: TinyRun, pki: Pki, seen: Seen
) -> None:
    """Scenario 32."""
    with serving(run, ServerTls(pki.folder)) as address:
        error = refused(address, None, "a")
    assert (type(error), error.reason) == (UnauthenticatedError, "TLS_EXPECTED")
    assert "--tls" in str(error)
    seen(error.reason)


@pytest.mark.scenario(32)
def test_a_tls_client_learns_that_the_coordinator_speaks_plain_text(
    run: TinyRun, pki: Pki, seen: Seen
) -> None:
    """Scenario 32, the other way round."""
    with serving(run, None) as address:
        error = refused(address, pki.client("a"))
    assert (type(error), error.reason) == (UnauthenticatedError, "NO_TLS")
    seen(error.reason)


@pytest.mark.scenario(32)
def test_a_web_browser_on_the_port_is_sent_away_at_once(run: TinyRun, pki: Pki, seen: Seen) -> None:
    """Scenario 32: HTTP/1 on the TLS port is closed without an answer, and the coordinator goes on."""
    with serving(run, ServerTls(pki.folder)) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 5.0) as browser:
            browser.sendall(b"GET / HTTP/1.1\r\nHost: fkd\r\n\r\n")
            assert browser.recv(100) == b""
        with connected(address, pki.client("a")) as transport:
            assert register(transport) == "run-1"
    seen("closed, and the next client registers")


@pytest.mark.scenario(32)
def test_strangers_cost_one_line_of_the_log_each(pki: Pki, seen: Seen) -> None:
    """Scenario 32: in a process of its own, whose standard error is counted."""
    script = (
        "import socket, sys, tempfile\n"
        "from pathlib import Path\n"
        "from fkd_server.access.tls import ServerTls\n"
        "from tests.security.serving import refused, serving\n"
        "from tests.server.tiny import tiny_run\n"
        "run = tiny_run(Path(tempfile.mkdtemp()) / 'run')\n"
        f"with serving(run, ServerTls(Path({str(pki.folder)!r}))) as address:\n"
        "    host, _, port = address.rpartition(':')\n"
        "    with socket.create_connection((host, int(port)), 5.0) as browser:\n"
        "        browser.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\n"
        "        assert browser.recv(100) == b''\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) <= 1, done.stderr
    seen(f"{len(lines)} line")


def test_nothing_older_than_tls_1_2_is_spoken(run: TinyRun, pki: Pki) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(pki.folder / "ca.pem")
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with serving(run, ServerTls(pki.folder)) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 5.0) as connection, pytest.raises(ssl.SSLError):
            context.wrap_socket(connection, server_hostname="localhost")


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda folder: (folder / "key.pem").unlink(), "no key.pem"),
        (lambda folder: (folder / "cert.pem").write_text("hello"), "cert.pem is damaged"),
        (lambda folder: (folder / "key.pem").write_bytes(key_pem(new_key())), "not the key of"),
        (lambda folder: (folder / "ca.pem").write_bytes(b"\0" * (2 << 20)), "bytes"),
    ],
)
def test_a_folder_that_does_not_fit_together_is_a_usage_error(pki: Pki, spoil: object, named: str) -> None:
    folder = pki.holder("a")
    assert callable(spoil)
    spoil(folder)
    with pytest.raises(UsageError, match=named):
        ClientTls(folder)


def test_an_operator_takes_no_part_in_runs(run: TinyRun, pki: Pki) -> None:
    folder = pki.holder("alice", Role.OPERATOR)
    with pytest.raises(UsageError, match="operator"):
        ClientTls(folder)
    own = grpc.ssl_channel_credentials(
        *((folder / name).read_bytes() for name in ("ca.pem", "key.pem", "cert.pem"))
    )
    with serving(run, ServerTls(pki.folder)) as address:
        code, _ = raw_call(address, own, METHODS["Register"], registration())
    assert code is grpc.StatusCode.PERMISSION_DENIED
