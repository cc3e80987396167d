"""Why a coordinator cannot be talked to: tries a TLS handshake of its own and says what is wrong with it.

gRPC reports most failed handshakes as "Socket closed". Python's own TLS tells them apart. Nothing is sent here
but the handshake, and nothing that answers is trusted.
"""

from __future__ import annotations

import socket
import ssl
from enum import Enum
from pathlib import Path

from cryptography import x509

from fkd_common.access.certificates import (
    CLIENT_FILES,
    Credentials,
    FileNames,
    check_period,
    holder_of,
    utc_now,
)
from fkd_common.addresses import split_address
from fkd_common.errors import FkdError, UnauthenticatedError, UnreachableError

PROBE_TIMEOUT_S = 2.0
"""Longest wait for a connection, and for each answer."""

_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_HOST = (62, 64)


class _Seen(Enum):
    """How a handshake went."""

    WELCOME = "the coordinator began to speak HTTP/2"
    CLOSED = "the coordinator proved itself, then closed the connection"
    PLAIN = "whoever answered does not speak TLS"
    NOTHING = "no connection, or no answer"


def why_plain_text_fails(address: str, names: FileNames = CLIENT_FILES) -> FkdError | None:
    """Whether a plain-text connection fails because the coordinator speaks TLS; None if that is not it.

    Args:
        address: Of the coordinator, HOST:PORT.
        names: The files that this caller needs, for advice.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # to learn that it speaks TLS; nothing is sent
    try:
        seen = _shake_hands(address, context)
    except ssl.SSLError:
        return None
    if seen not in (_Seen.WELCOME, _Seen.CLOSED):
        return None
    return UnauthenticatedError(
        f"the coordinator at {address} expects TLS: give --tls FOLDER with ca.pem, cert.pem and key.pem, "
        f"made there by {names.made_by}",
        reason="TLS_EXPECTED",
    )


def why_tls_fails(address: str, credentials: Credentials, names: FileNames = CLIENT_FILES) -> FkdError | None:
    """What is wrong between these credentials and the coordinator; None if that cannot be told.

    Args:
        address: Of the coordinator, HOST:PORT.
        credentials: What the caller shows.
        names: The files that this caller needs, for advice.

    Returns:
        An UnauthenticatedError where trying again cannot help, an UnreachableError where it may.
    """
    own = _own_certificate(credentials.certificate)
    if own is not None:
        return own
    ca, certificate, key = credentials.paths
    context = trusting(credentials.ca)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError):
        return None  # being replaced at this moment
    # Once may be a coordinator that is just stopping; twice is one that does not want this certificate.
    for _ in range(2):
        seen = _look(address, context, ca)
        if isinstance(seen, FkdError):
            return seen
        if seen is not _Seen.CLOSED:
            return None
    issuer = credentials.certificate.issuer.rfc4514_string()
    return UnauthenticatedError(
        f"the coordinator at {address} does not accept the certificate {certificate}, issued by {issuer}: it trusts "
        f"other authorities; have one made there by {names.made_by}",
        reason="CERTIFICATE_NOT_ACCEPTED",
    )


def why_server_fails(address: str, context: ssl.SSLContext, ca: Path | str) -> FkdError | None:
    """What is wrong with the certificate that a coordinator shows, for a client that trusts `ca`; None if nothing."""
    seen = _look(address, context, ca)
    return seen if isinstance(seen, FkdError) else None


def _look(address: str, context: ssl.SSLContext, ca: Path | str) -> _Seen | FkdError:
    """How a handshake goes, or what is wrong with the coordinator's side of it."""
    host, _ = split_address(address)
    try:
        seen = _shake_hands(address, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code == _EXPIRED:
            return UnreachableError(
                f"the certificate of the coordinator at {address} has expired by this machine's clock "
                f"({utc_now():%Y-%m-%d %H:%M} UTC): renew it there with `fkd-server certs renew`, or set the clock",
                reason="SERVER_CERTIFICATE_EXPIRED",
            )
        if error.verify_code == _NOT_YET_VALID:
            return UnreachableError(
                f"the certificate of the coordinator at {address} is not valid yet by this machine's clock "
                f"({utc_now():%Y-%m-%d %H:%M} UTC): one of the two clocks is wrong",
                reason="SERVER_CERTIFICATE_NOT_YET_VALID",
            )
        if error.verify_code in _WRONG_HOST:
            return UnauthenticatedError(
                f"the coordinator's certificate is not for {host!r}: reach it by a name that it carries, or add this "
                f"one there with `fkd-server certs renew --host {host}`",
                reason="WRONG_HOST",
            )
        return UnauthenticatedError(
            f"the certificate of the coordinator at {address} is not signed by the authority in {ca} "
            f"({error.verify_message}): this is another coordinator, or ca.pem is another one's",
            reason="SERVER_NOT_TRUSTED",
        )
    except ssl.SSLError as error:
        return UnreachableError(f"TLS with {address} failed: {error.reason or error}", reason="HANDSHAKE")
    if seen is _Seen.PLAIN:
        return UnauthenticatedError(
            f"the coordinator at {address} does not speak TLS: start it with --tls, or leave out --tls here if it is "
            "reached through a tunnel",
            reason="NO_TLS",
        )
    return seen


def trusting(ca: bytes) -> ssl.SSLContext:
    """A context that trusts nobody but these authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=ca.decode("ascii", "replace"))
    return context


def _own_certificate(certificate: x509.Certificate) -> FkdError | None:
    try:
        check_period(holder_of(certificate), utc_now())
    except UnauthenticatedError as error:
        if error.reason == "CERTIFICATE_NOT_YET_VALID":
            return UnreachableError(str(error), reason=error.reason)  # clocks get set
        return error
    return None


def _shake_hands(address: str, context: ssl.SSLContext) -> _Seen:
    """Connect and wait for the first byte.

    Raises:
        ssl.SSLError: The handshake failed on this side.
    """
    context.set_alpn_protocols(["h2"])
    host, port = split_address(address)
    try:
        connection = socket.create_connection((host, port), PROBE_TIMEOUT_S)
    except OSError:
        return _Seen.NOTHING
    with connection:
        try:
            with context.wrap_socket(connection, server_hostname=host) as secure:
                try:
                    return _Seen.WELCOME if secure.recv(1) else _Seen.CLOSED
                except TimeoutError:
                    return _Seen.NOTHING
                except OSError:  # an alert, or a reset: either way it does not go on with us
                    return _Seen.CLOSED
        except ssl.SSLError as error:
            if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
                return _Seen.PLAIN
            if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
                return _Seen.NOTHING
            raise
        except OSError:
            return _Seen.NOTHING
