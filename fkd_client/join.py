"""Gets a site's certificate with a join token: the key is made here and stays here; knows nothing of runs.

A certificate that has expired is replaced: a new key and certificate are fetched into a folder beside the files,
`renewal`, and take their place when they are complete; the files before are kept as `*.old`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import structlog
import tenacity
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from google.protobuf.message import DecodeError

from fkd_common.access.certificates import (
    CLIENT_FILES,
    UNREADABLE,
    Credentials,
    fingerprint,
    holder_of,
    replace,
    to_pem,
    utc_now,
    write_new,
)
from fkd_common.access.handshake import trusting, why_server_fails
from fkd_common.access.join_token import MAX_ENROLMENT_MESSAGE_BYTES, read_token
from fkd_common.addresses import join_address, split_address
from fkd_common.errors import FkdError, RefusedError, UnauthenticatedError, UnreachableError, UsageError
from fkd_common.pb import enrolment_pb2 as pb
from fkd_common.rpc import ENROLMENT_METHODS, from_rpc_error

RENEWAL_FOLDER = "renewal"
CALL_TIMEOUT_S = 15.0
OnCancel = Callable[[Callable[[], None]], None]
"""Is told what ends the wait that is at work, to be called from any thread."""

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ENROLMENT_MESSAGE_BYTES),
    ("grpc.enable_retries", 0),
]


def join(
    given: str,
    folder: Path,
    server: str,
    port: int | None,
    patience_s: float,
    on_cancel: OnCancel = lambda end: None,
) -> None:
    """Fill a folder with credentials, unless it has some that have not expired.

    Args:
        given: The token, or @FILE.
        folder: Receives ca.pem, cert.pem and key.pem.
        server: The coordinator, HOST:PORT.
        port: Its port for joining; None: the one after the other.
        patience_s: How long to keep trying a coordinator that does not answer, in seconds.
        on_cancel: For a caller that may have to end the wait for the coordinator.

    Raises:
        UsageError: The token is not whole, or for another site than the folder; or the folder cannot be used.
        UnauthenticatedError: The coordinator does not accept the token, or is not the token's.
        UnreachableError: Patience ran out, or the wait was ended.
    """
    try:
        _join(given, folder, _Enrolment(server, port, patience_s, on_cancel))
    except OSError as error:
        raise UsageError(f"--tls {folder} cannot be written: {error.strerror or error}") from error


def _join(given: str, folder: Path, at: _Enrolment) -> None:
    log = structlog.get_logger()
    fresh = folder / RENEWAL_FOLDER
    if (fresh / "cert.pem").exists():  # an earlier process was about to
        _take(fresh, folder)
    if not any((folder / name).exists() for name in CLIENT_FILES.certificate):
        at.enrol(*read_token(given), folder)
        return
    old = Credentials.read(folder, CLIENT_FILES)
    ended = old.certificate.not_valid_after_utc
    if ended > utc_now() or old.paths[1].name != "cert.pem":  # tls.crt is another program's to renew
        log.info("joined_before", folder=str(folder), token="not looked at")  # noqa: S106  # not a password
        return
    expired = f"the certificate in {folder} expired at {ended:%Y-%m-%d %H:%M} UTC"
    log.warning("joining_again", folder=str(folder), detail=expired)
    token, ca = read_token(given)
    try:
        named = holder_of(old.certificate).name
        if named != token.name:
            raise UsageError(
                f"--join: the token is for {token.name}, and --tls {folder} is {named}'s: give another folder"
            )
        at.enrol(token, ca, fresh)
    except UnauthenticatedError as error:
        raise UnauthenticatedError(
            f"{expired}, and --join fetched no other: {error}", reason=error.reason
        ) from error
    _take(fresh, folder)


class _Enrolment:
    """A coordinator's port for joining, asked until it answers."""

    def __init__(self, server: str, port: int | None, patience_s: float, on_cancel: OnCancel) -> None:
        self._server, self._port = server, port
        self._patience_s = patience_s
        self._on_cancel = on_cancel
        self._cancelled = threading.Event()
        self._log = structlog.get_logger()

    def enrol(self, token: pb.JoinToken, ca: x509.Certificate, folder: Path) -> None:
        """Fill a folder that has no certificate."""
        host, main_port = split_address(self._server)
        address = join_address(host, self._port or main_port + 1)
        key = _key(folder)
        self._log.info("joining", address=address, name=token.name, authority=fingerprint(ca))
        request = pb.JoinRequest(secret=token.secret, signing_request=_signing_request(key, token.name))
        self._on_cancel(self._cancelled.set)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(UnreachableError),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=5.0),
            stop=tenacity.stop_after_delay(self._patience_s) | tenacity.stop_when_event_set(self._cancelled),
            sleep=tenacity.sleep_using_event(self._cancelled),
            before_sleep=self._say,
            reraise=True,
        )
        answer = retrying(self._ask, address, to_pem(ca), request)
        certificate = _checked(answer, key, token.name)
        replace(folder / "ca.pem", answer.ca)
        replace(folder / "cert.pem", answer.certificate)  # last: it says that the folder is complete
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        self._log.info("joined", name=token.name, folder=str(folder), expires=until)

    def _say(self, state: tenacity.RetryCallState) -> None:
        if state.attempt_number in (1, 3) or state.attempt_number % 10 == 0:
            error = state.outcome.exception() if state.outcome else None
            self._log.warning("join_unanswered", attempt=state.attempt_number, detail=str(error))

    def _ask(self, address: str, ca: bytes, request: pb.JoinRequest) -> pb.JoinResponse:
        """One attempt; the channel trusts the token's authority and nobody else."""
        method = ENROLMENT_METHODS["Join"]
        with grpc.secure_channel(address, grpc.ssl_channel_credentials(ca), options=_OPTIONS) as channel:
            stub = channel.unary_unary(method.path, request_serializer=None, response_deserializer=None)
            call = stub.future(request.SerializeToString(), timeout=CALL_TIMEOUT_S)

            def end() -> None:
                self._cancelled.set()
                call.cancel()  # type: ignore[no-untyped-call]

            self._on_cancel(end)
            try:
                raw: bytes = call.result()
            except grpc.FutureCancelledError as error:
                raise UnreachableError(f"the wait for {address} was ended") from error
            except grpc.RpcError as error:
                raise _explained(address, ca, error) from error
        try:
            return pb.JoinResponse.FromString(raw)
        except DecodeError as error:
            raise RefusedError(f"the answer from {address} is not understood: {error}") from error


def _take(fresh: Path, folder: Path) -> None:
    """Put complete credentials in place of expired ones; begun again where it was broken off."""
    for name in ("ca.pem", "key.pem", "cert.pem"):  # the last says that there is something to take
        if (fresh / name).exists():
            if (folder / name).exists():
                (folder / name).replace(folder / f"{name}.old")
            (fresh / name).replace(folder / name)
    with contextlib.suppress(OSError):  # something else is in it
        fresh.rmdir()


def _explained(address: str, ca: bytes, error: grpc.RpcError) -> FkdError:
    problem = from_rpc_error(error, address)
    if isinstance(problem, UnreachableError) and problem.reason == UnreachableError.reason:
        found = why_server_fails(address, trusting(ca), "the token")
        return found or UnreachableError(
            f"nobody answers at {address} ({problem}): is fkd-server running with --tls, and is this its --join-port?"
        )
    return problem


def _key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """The folder's key; made if there is none, kept from an attempt whose answer got lost."""
    path = folder / "key.pem"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.exists():
            kept = load_pem_private_key(path.read_bytes(), password=None)
            if not isinstance(kept, ec.EllipticCurvePrivateKey):
                raise UsageError(f"{path} is not a key that --join made: give --tls another folder")
            return kept
        key = ec.generate_private_key(ec.SECP256R1())
        write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), private=True)
        return key
    except UNREADABLE as error:
        raise UsageError(f"{path} is not a key that --join made: give --tls another folder") from error


def _signing_request(key: ec.EllipticCurvePrivateKey, name: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(Encoding.DER)


def _checked(answer: pb.JoinResponse, key: ec.EllipticCurvePrivateKey, name: str) -> x509.Certificate:
    """The certificate, if it is what was asked for.

    Raises:
        RefusedError: It is for another key or name.
    """
    try:
        certificate = x509.load_pem_x509_certificate(answer.certificate)
        x509.load_pem_x509_certificates(answer.ca)
        named = holder_of(certificate).name
    except (*UNREADABLE, UnauthenticatedError) as error:
        raise RefusedError(f"the coordinator's answer is no certificate: {error}") from error
    if named != name or certificate.public_key() != key.public_key():
        raise RefusedError(f"the coordinator sent a certificate for {named}, which is not this site's")
    return certificate
