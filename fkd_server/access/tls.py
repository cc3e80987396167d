"""The coordinator's side of mutual TLS: credentials that may change at any time, and who a caller is.

gRPC checks signatures and periods when a connection opens. What it does not check is checked here on every
call, so that it also ends connections that are open: revocation, expiry, and that the certificate names a
holder at all.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import structlog
from cryptography import x509

from fkd_common.access.certificates import (
    SERVER_FILES,
    UNREADABLE,
    Credentials,
    Holder,
    check_period,
    holder_of,
    utc_now,
)
from fkd_common.errors import UnauthenticatedError, UsageError
from fkd_server.access.identity import Peer
from fkd_server.access.revocation import RevokedList


class ServerTls:
    """The credentials in a folder, as they are now; safe to use from several threads."""

    def __init__(self, folder: Path, clock: Callable[[], datetime] = utc_now) -> None:
        """Read the folder.

        Args:
            folder: Where the files are.
            clock: The time, for the periods of certificates on connections that are open.

        Raises:
            UsageError: Its files are missing or do not fit together.
        """
        self.folder = folder
        self._clock = clock
        self._credentials = Credentials.read(folder, SERVER_FILES)
        self._revoked = RevokedList(folder)
        self._lock = threading.Lock()
        self._complaint = ""

    def credentials(self, *, clients_prove_themselves: bool = True) -> grpc.ServerCredentials:
        """Credentials for one port: every new connection is given what the folder then holds.

        Args:
            clients_prove_themselves: Whether a client must show a certificate signed by one of ca.pem.
        """
        served = self.current()

        def fetch() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            current = self.current()
            if current is served:
                return None
            served = current
            return _configuration(current)

        return grpc.dynamic_ssl_server_credentials(
            _configuration(served),
            fetch,  # type: ignore[arg-type]  # None, for "as before", is allowed
            require_client_authentication=clients_prove_themselves,
        )

    def expires(self) -> datetime:
        """When the certificate that new connections are given ends."""
        return self.current().certificate.not_valid_after_utc

    def trusted(self) -> bytes:
        """The authorities that clients are to trust, PEM."""
        return self.current().ca

    def peer_of(self, context: Any) -> Peer:
        """Who makes a call, by the certificate of its connection.

        Args:
            context: The call's gRPC context.

        Raises:
            UnauthenticatedError: The certificate names nobody, is revoked, or outside its period.
        """
        return self.peer_with(context.auth_context().get("x509_pem_cert", [b""])[0])

    def peer_with(self, pem: bytes) -> Peer:
        """Who shows a certificate that one of ca.pem signed.

        Args:
            pem: The certificate.

        Raises:
            UnauthenticatedError: It names nobody, is revoked, or outside its period.
        """
        holder = _holder(pem)
        if holder.serial in self._revoked:
            raise UnauthenticatedError(
                f"the certificate of {holder.name} (serial {holder.serial:x}) has been revoked: ask the coordinator's "
                "operator, and put another certificate, or one from --join, into a new --tls folder",
                reason="CERTIFICATE_REVOKED",
            )
        check_period(holder, self._clock())
        return Peer(holder.name, holder.role)

    def current(self) -> Credentials:
        """The folder's credentials; the last good ones while it holds others that do not fit together."""
        with self._lock:
            if self._credentials.changed(self.folder, SERVER_FILES):
                try:
                    self._credentials = Credentials.read(self.folder, SERVER_FILES)
                except UsageError as error:
                    if str(error) != self._complaint:  # once, not at every connection
                        structlog.get_logger().error(
                            "certificates_unusable", detail=str(error), using="the ones before"
                        )
                    self._complaint = str(error)
                else:
                    self._complaint = ""
                    expires = self._credentials.certificate.not_valid_after_utc
                    structlog.get_logger().info(
                        "certificates_renewed", expires=f"{expires:%Y-%m-%d %H:%M} UTC"
                    )
            return self._credentials


def _configuration(credentials: Credentials) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(credentials.key, credentials.chain)], root_certificates=credentials.ca
    )


@functools.lru_cache(maxsize=4096)
def _holder(pem: bytes) -> Holder:
    """Whom a certificate names, read once per certificate rather than once per call."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except UNREADABLE as error:
        raise UnauthenticatedError(
            "this coordinator talks only to holders of a certificate: give the client --tls",
            reason="NO_IDENTITY",
        ) from error
    return holder_of(certificate)
