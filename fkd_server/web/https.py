"""TLS of the second port with the coordinator's own certificate, as the folder holds it now; knows no HTTP."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from fkd_common.errors import UsageError

if TYPE_CHECKING:  # reading certificates costs megabytes, which plain text need not pay
    from fkd_common.access.certificates import Credentials
    from fkd_server.access.tls import ServerTls


class Https:
    """Makes the TLS context of every new connection; for one event loop."""

    def __init__(self, tls: ServerTls) -> None:
        """Load the folder's certificate.

        Raises:
            UsageError: OpenSSL does not take it.
        """
        self._tls = tls
        self._credentials = tls.current()
        self._refused: Credentials | None = None
        try:
            self._context = _context(self._credentials)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"--tls {tls.folder}: the certificate cannot be used for --http-port ({error}); put back a copy, or "
                "have it made anew by `fkd-server certs renew`"
            ) from error

    def context(self) -> ssl.SSLContext:
        """For a connection that opens now; the last good one while the folder's files do not fit together."""
        current = self._tls.current()
        if current is not self._credentials and current is not self._refused:
            try:
                self._context, self._credentials = _context(current), current
            except (OSError, ssl.SSLError) as error:  # replaced again as it was read, or no good
                self._refused = current
                structlog.get_logger().error(
                    "certificates_unusable", detail=str(error), using="the ones before"
                )
        return self._context


def _context(credentials: Credentials) -> ssl.SSLContext:
    """Clients may show a certificate, and need not: probes and browsers have none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=credentials.ca.decode("ascii"))
    _, chain, key = credentials.paths
    context.load_cert_chain(Path(chain), Path(key))
    context.set_alpn_protocols(["http/1.1"])
    return context
