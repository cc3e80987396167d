"""Join tokens: a new site fetches its certificate, once, from a real enrolment port; what goes wrong is said."""

from __future__ import annotations

import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import time_machine
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from structlog.testing import capture_logs

from fkd_client.join import join
from fkd_client.tls import ClientTls
from fkd_common.access.certificates import holder_of, to_pem
from fkd_common.access.join_token import MAX_ENROLMENT_MESSAGE_BYTES, PREFIX, decode_token
from fkd_common.access.roles import Role
from fkd_common.errors import (
    ExitCode,
    FkdError,
    InvalidUploadError,
    UnauthenticatedError,
    UnreachableError,
    UsageError,
)
from fkd_common.pb import enrolment_pb2 as pb
from fkd_common.rpc import ENROLMENT_METHODS
from fkd_server.access.certificates import new_key
from fkd_server.access.enrolment import MAX_WRONG, WINDOW_S, Enrolment, WrongTokens
from fkd_server.access.join_tokens import TOKENS_FOLDER, TokenState, TokenStore
from fkd_server.access.tls import ServerTls
from tests.scenario_table import Seen
from tests.server.tiny import TinyRun

from .conftest import Pki
from .serving import connected, enrolling, raw_call, refused, register, serving

DAY = timedelta(days=1)


def token_for(pki: Pki, name: str, valid: timedelta = DAY) -> str:
    return TokenStore(pki.folder).create(pki.authority, name, valid)


def join_at(port: int, token: str, folder: Path, patience_s: float = 5.0) -> None:
    join(token, folder, "127.0.0.1:50051", port, patience_s)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def port(pki: Pki) -> Iterator[int]:
    with enrolling(ServerTls(pki.folder)) as bound:
        yield bound


def test_a_token_becomes_a_certificate_that_the_coordinator_accepts(
    run: TinyRun, pki: Pki, port: int, tmp_path: Path
) -> None:
    folder = tmp_path / "site" / "tls"
    with capture_logs() as logs:
        join_at(port, token_for(pki, "shard3"), folder)
    assert sorted(files_in(folder)) == ["ca.pem", "cert.pem", "key.pem"]
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    with serving(run, ServerTls(pki.folder)) as address, connected(address, ClientTls(folder)) as transport:
        assert register(transport) == "run-1"
    assert list(run.coordinator.attendance.clients) == ["shard3"]
    assert [(x["event"], x["name"]) for x in logs if x["event"] == "joined"] == [("joined", "shard3")] * 2


def test_a_token_may_be_in_a_file_and_wrapped(pki: Pki, port: int, tmp_path: Path) -> None:
    token = token_for(pki, "a")
    (tmp_path / "token").write_text("\n".join(token[i : i + 60] for i in range(0, len(token), 60)) + "\n")
    join_at(port, f"@{tmp_path / 'token'}", tmp_path / "tls")
    assert ClientTls(tmp_path / "tls").name == "a"


def test_a_site_that_has_its_certificate_does_not_ask_again(pki: Pki, tmp_path: Path) -> None:
    """So that a systemd unit can keep --join: nobody answers here, and nothing is needed."""
    folder = pki.holder("a")
    before = files_in(folder)
    with capture_logs() as logs:
        join_at(1, "not even a token", folder)
    assert files_in(folder) == before
    assert [line["event"] for line in logs] == ["joined_before"]


@pytest.mark.scenario(31)
def test_an_expired_certificate_is_replaced_by_a_new_token(
    run: TinyRun, pki: Pki, port: int, tmp_path: Path
) -> None:
    """Scenario 31: with a new key; the files before are kept."""
    folder = pki.holder("a", days=-0.001)
    before = files_in(folder)
    join_at(port, token_for(pki, "a"), folder)
    after = files_in(folder)
    assert {name.removesuffix(".old"): after[name] for name in after if name.endswith(".old")} == before
    assert len(after) == 6
    assert after["key.pem"] != before["key.pem"]
    with serving(run, ServerTls(pki.folder)) as address, connected(address, ClientTls(folder)) as transport:
        assert register(transport) == "run-1"


def test_an_expired_certificate_stays_until_there_is_another(pki: Pki, port: int, tmp_path: Path) -> None:
    """A unit that keeps --join with a used token, and a clock that is ahead for a moment, lose nothing."""
    used = token_for(pki, "a")
    join_at(port, used, tmp_path / "first")
    folder = pki.holder("a", days=-0.001)
    before = files_in(folder)
    with pytest.raises(UnauthenticatedError, match=r"expired at .* and --join fetched no other") as error:
        join_at(port, used, folder)
    assert error.value.reason == "TOKEN_USED"
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    with pytest.raises(UsageError, match="the token is for b"):
        join_at(port, token_for(pki, "b"), folder)
    join_at(port, token_for(pki, "a"), folder)
    assert ClientTls(folder).name == "a"


@pytest.mark.parametrize("moved", [(), ("ca.pem",), ("ca.pem", "key.pem")])
def test_replacing_that_was_broken_off_is_finished(pki: Pki, tmp_path: Path, moved: tuple[str, ...]) -> None:
    """Scenario 2: the process died between two files; nobody answers here, and nothing is needed."""
    folder, fresh = pki.holder("a", days=-0.001), pki.holder("a", folder="a/renewal")
    complete = files_in(fresh)
    for name in moved:
        (folder / name).replace(folder / f"{name}.old")
        (fresh / name).replace(folder / name)
    if moved:
        (folder / "cert.pem").replace(folder / "cert.pem.old")
    join_at(1, "not even a token", folder)
    assert {
        name: content for name, content in files_in(folder).items() if not name.endswith(".old")
    } == complete


@pytest.mark.scenario(15)
def test_a_token_works_once(pki: Pki, port: int, tmp_path: Path, seen: Seen) -> None:
    """Scenario 15, replayed: whoever finds a used token gets nothing."""
    token = token_for(pki, "a")
    join_at(port, token, tmp_path / "first")
    with pytest.raises(UnauthenticatedError) as error:
        join_at(port, token, tmp_path / "thief")
    assert error.value.reason == "TOKEN_USED"
    assert not (tmp_path / "thief/cert.pem").exists()
    seen(f"UNAUTHENTICATED {error.value.reason}")


def test_a_lost_answer_costs_nothing(pki: Pki, port: int, tmp_path: Path) -> None:
    """The same key again gets the same certificate."""
    token, folder = token_for(pki, "a"), tmp_path / "tls"
    join_at(port, token, folder)
    first = files_in(folder)
    (folder / "cert.pem").unlink()
    (folder / "ca.pem").unlink()
    join_at(port, token, folder)
    assert files_in(folder) == first


@pytest.mark.scenario(15)
def test_a_token_ends(pki: Pki, port: int, tmp_path: Path, seen: Seen) -> None:
    """Scenario 15, expired: before its use, and for asking again after it."""
    with time_machine.travel(datetime.now(UTC) - 2 * DAY):
        token = token_for(pki, "a", DAY)
    with pytest.raises(UnauthenticatedError) as error:
        join_at(port, token, tmp_path / "tls")
    assert error.value.reason == "TOKEN_EXPIRED"
    assert [one.state for one in TokenStore(pki.folder).listed()] == [TokenState.EXPIRED]
    seen(f"UNAUTHENTICATED {error.value.reason}")


@pytest.mark.scenario(15)
def test_a_withdrawn_token_is_unknown(pki: Pki, port: int, tmp_path: Path, seen: Seen) -> None:
    """Scenario 15."""
    token, other = token_for(pki, "a"), token_for(pki, "b")
    TokenStore(pki.folder).withdraw("a")
    with pytest.raises(UnauthenticatedError) as error:
        join_at(port, token, tmp_path / "a")
    assert error.value.reason == "TOKEN_UNKNOWN"
    join_at(port, other, tmp_path / "b")
    with pytest.raises(UsageError, match="waits"):
        TokenStore(pki.folder).withdraw("b")  # used: what can be withdrawn now is the certificate
    seen(f"UNAUTHENTICATED {error.value.reason}")


@pytest.mark.scenario(15, 31)
def test_a_token_of_another_coordinator_talks_to_nobody(
    pki: Pki, another: Pki, port: int, tmp_path: Path, seen: Seen
) -> None:
    """Scenarios 15, 31: the token carries its coordinator's authority; its secret never reaches another one."""
    with capture_logs() as logs, pytest.raises(UnauthenticatedError) as error:
        join_at(port, token_for(another, "a"), tmp_path / "tls")
    assert error.value.reason == "SERVER_NOT_TRUSTED"
    assert not [line for line in logs if line["event"] == "join_refused"]
    seen(error.value.reason)


def test_the_coordinator_keeps_no_secret(pki: Pki) -> None:
    token, authority = decode_token(token_for(pki, "a"))
    assert authority == pki.authority.certificate
    for path in (pki.folder / TOKENS_FOLDER).iterdir():
        assert token.secret not in path.read_bytes()
        assert token.secret.hex() not in path.name + path.read_text()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "spoil",
    [
        lambda token: token[:-5],
        lambda token: token.removeprefix(PREFIX),
        lambda token: token[:40] + ("A" if token[40] != "A" else "B") + token[41:],
        lambda token: PREFIX,
        lambda token: token + "é",
        lambda token: PREFIX + "A" * 10_000,
        lambda token: "@/no/such/file",
    ],
)
def test_half_a_token_is_a_usage_error_that_does_not_quote_it(
    pki: Pki, tmp_path: Path, spoil: Callable[[str], str]
) -> None:
    token = token_for(pki, "a")
    with pytest.raises(UsageError, match="--join") as error:
        join_at(1, spoil(token), tmp_path / "tls")
    assert token[20:60] not in str(error.value)


def test_a_coordinator_that_does_not_answer_is_tried_until_patience_ends(pki: Pki, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match="--join-port"):
        join_at(1, token_for(pki, "a"), tmp_path / "tls", patience_s=0.5)


# -- what is sent is not trusted ------------------------------------------------------------------


def request_for(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, extensions: tuple[x509.ExtensionType, ...] = ()
) -> bytes:
    """A signing request that asks for more than it should get."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "operator")])
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def asked(pki: Pki, name: str, signing_request: bytes, service: Enrolment | None = None) -> x509.Certificate:
    token, _ = decode_token(token_for(pki, name))
    request = pb.JoinRequest(secret=token.secret, signing_request=signing_request)
    service = service or Enrolment(ServerTls(pki.folder))
    answer = pb.JoinResponse.FromString(service.join(request.SerializeToString(), "192.0.2.1"))
    return x509.load_pem_x509_certificate(answer.certificate)


@pytest.mark.scenario(15)
def test_nothing_but_the_key_is_taken_from_a_signing_request(pki: Pki, seen: Seen) -> None:
    """Scenario 15: a site cannot name itself, make itself an authority, or pose as the coordinator."""
    wishes = (
        x509.SubjectAlternativeName(
            [x509.UniformResourceIdentifier("urn:fkd:operator:mallory"), x509.DNSName("localhost")]
        ),
        x509.BasicConstraints(ca=True, path_length=None),
    )
    key = new_key()
    certificate = asked(pki, "a", request_for(key, wishes))
    holder = holder_of(certificate)
    assert (holder.role, holder.name) == (Role.CLIENT, "a")
    assert certificate.public_key() == key.public_key()
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == []
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    seen("certificate for urn:fkd:client:a and nothing else")


def forged(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A signing request with somebody else's public key, signed with one's own."""
    theirs = request_for(new_key())
    mine = request_for(key)
    point = (
        x509.load_der_x509_csr(mine).public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    )  # type: ignore[union-attr]
    other = (
        x509.load_der_x509_csr(theirs)
        .public_key()
        .public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    )  # type: ignore[union-attr]
    return mine.replace(point, other)


@pytest.mark.parametrize(
    "signing_request",
    [
        b"",
        b"\x30\x80",
        request_for(new_key())[:-3],
        request_for(ec.generate_private_key(ec.SECP384R1())),
        request_for(rsa.generate_private_key(65537, 2048)),
        forged(new_key()),
    ],
    ids=["nothing", "no DER", "cut", "other curve", "RSA", "not the sender's key"],
)
def test_a_signing_request_that_is_none_does_not_use_up_the_token(pki: Pki, signing_request: bytes) -> None:
    with pytest.raises(InvalidUploadError) as error:
        asked(pki, "a", signing_request)
    assert error.value.reason == "BAD_SIGNING_REQUEST"
    assert [one.state for one in TokenStore(pki.folder).listed()] == [TokenState.WAITING]


@pytest.mark.scenario(15)
def test_guessing_is_slowed_down_and_seen(pki: Pki, seen: Seen) -> None:
    """Scenario 15: after some wrong tokens an address has to wait; other addresses do not; the log stays short."""
    now = [0.0]
    service = Enrolment(ServerTls(pki.folder), lambda: now[0])
    wrong = pb.JoinRequest(secret=bytes(32), signing_request=request_for(new_key())).SerializeToString()

    def reason(address: str) -> str:
        with pytest.raises(FkdError) as error:
            service.join(wrong, address)
        return error.value.reason

    with capture_logs() as logs:
        reasons = [reason("192.0.2.66") for _ in range(MAX_WRONG + 5)]
    assert reasons == ["TOKEN_UNKNOWN"] * MAX_WRONG + ["TOO_MANY_TOKENS"] * 5
    assert [line["event"] for line in logs] == ["join_refused"] * MAX_WRONG
    assert asked(pki, "a", request_for(new_key()), service) is not None
    now[0] = WINDOW_S
    assert reason("192.0.2.66") == "TOKEN_UNKNOWN"
    seen(f"{MAX_WRONG} tries a minute")


@pytest.mark.scenario(32)
def test_a_client_sent_to_the_port_for_tokens_is_told_so(pki: Pki, port: int, seen: Seen) -> None:
    """Scenario 32: gRPC's own word is "Method not found!"; trying again would not help."""
    error = refused(f"127.0.0.1:{port}", pki.client("a"))
    assert error.exit_code is ExitCode.REJECTED
    assert f"127.0.0.1:{port}" in str(error)
    assert "--join has one of its own" in str(error)
    seen(error.reason)


def test_addresses_are_remembered_in_bounded_number() -> None:
    wrong = WrongTokens(lambda: 0.0)
    for i in range(5000):
        wrong.add(f"192.0.2.{i}")
    assert len(wrong._seen) <= 1024
    assert wrong.count("192.0.2.4999") == 1


def test_a_large_message_is_refused_unread(pki: Pki, port: int) -> None:
    """Scenario 22."""
    trusting = grpc.ssl_channel_credentials(to_pem(pki.authority.certificate))
    large = pb.JoinRequest(secret=bytes(MAX_ENROLMENT_MESSAGE_BYTES + 1)).SerializeToString()
    code, _ = raw_call(f"127.0.0.1:{port}", trusting, ENROLMENT_METHODS["Join"], large)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_bytes_that_are_no_request_are_refused(pki: Pki, port: int) -> None:
    trusting = grpc.ssl_channel_credentials(to_pem(pki.authority.certificate))
    code, _ = raw_call(f"127.0.0.1:{port}", trusting, ENROLMENT_METHODS["Join"], b"\xff\xff")
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_openssl_agrees_that_the_certificates_are_good(pki: Pki, tmp_path: Path) -> None:
    """Another implementation's view of purpose, names and signature."""
    certificate = asked(pki, "a", request_for(new_key()))
    (tmp_path / "a.pem").write_bytes(to_pem(certificate))
    for file, purpose in ((tmp_path / "a.pem", "sslclient"), (pki.folder / "server.pem", "sslserver")):
        command = [
            "openssl",
            "verify",
            "-x509_strict",
            "-purpose",
            purpose,
            "-CAfile",
            str(pki.folder / "ca.pem"),
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_folder_that_cannot_be_written_is_said_and_tried_again(pki: Pki, tmp_path: Path) -> None:
    """Scenario 28: the token is not used up, and works once the disk does."""
    token = token_for(pki, "a")
    (pki.folder / "issued").write_text("in the way of the folder of copies")
    with capture_logs() as logs, enrolling(ServerTls(pki.folder)) as port:
        with pytest.raises(UnreachableError) as error:
            join_at(port, token, tmp_path / "site", patience_s=0.1)
        (pki.folder / "issued").unlink()
        join_at(port, token, tmp_path / "site")
    assert error.value.reason == "STORAGE"
    assert "join_failed" in [line["event"] for line in logs]
    assert ClientTls(tmp_path / "site").name == "a"


@pytest.mark.parametrize("silent", [True, False])
def test_another_thread_can_end_the_wait_for_the_coordinator(pki: Pki, tmp_path: Path, silent: bool) -> None:
    """Whoever answers says nothing, or nobody answers."""
    ends, over = list[Callable[[], None]](), list[FkdError]()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = int(nobody.getsockname()[1])
        if not silent:
            nobody.close()

        def wait() -> None:
            try:
                join(token_for(pki, "a"), tmp_path / "a", "127.0.0.1:1", port, 300.0, ends.append)
            except UnreachableError as error:
                over.append(error)

        waiting = threading.Thread(target=wait, daemon=True)
        waiting.start()
        until = time.monotonic() + 30.0
        while len(ends) < 2:  # it has called
            assert time.monotonic() < until
            time.sleep(0.01)
        ends[-1]()
        waiting.join(10.0)
    assert len(over) == 1
