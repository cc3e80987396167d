"""A site's credentials: who it is, whom it trusts; read again when the files are replaced."""

from __future__ import annotations

from pathlib import Path

import grpc
import structlog

from fkd_common.access.certificates import CLIENT_FILES, Credentials, holder_of
from fkd_common.access.roles import Role
from fkd_common.errors import UnauthenticatedError, UsageError


class ClientTls:
    """The credentials in a folder: ca.pem, cert.pem, key.pem."""

    def __init__(self, folder: Path) -> None:
        """Read the folder.

        Raises:
            UsageError: Its files are missing, do not fit together, or are not a client's.
        """
        self._folder = folder
        self.credentials = Credentials.read(folder, CLIENT_FILES)
        try:
            holder = holder_of(self.credentials.certificate)
        except UnauthenticatedError as error:
            raise UsageError(f"--tls {folder}: {error}") from error
        if holder.role is not Role.CLIENT:
            raise UsageError(f"--tls {folder}: this is the certificate of an {holder.role}, not of a client")
        self.name = holder.name

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """What a new connection shows and trusts."""
        own = self.credentials
        return grpc.ssl_channel_credentials(own.ca, own.key, own.chain)

    def renew(self) -> bool:
        """Read the files again if they were replaced; whether there are new ones to use."""
        if not self.credentials.changed(self._folder, CLIENT_FILES):
            return False
        try:
            fresh = Credentials.read(self._folder, CLIENT_FILES)
            name = holder_of(fresh.certificate).name
        except (UsageError, UnauthenticatedError) as error:
            structlog.get_logger().warning(
                "certificates_unusable", detail=str(error), using="the ones before"
            )
            return False
        if name != self.name:
            structlog.get_logger().warning(
                "certificates_unusable",
                detail=f"they are {name}'s now, and this client is {self.name}",
                using="the ones before",
            )
            return False
        self.credentials = fresh
        structlog.get_logger().info("certificates_renewed", folder=str(self._folder))
        return True
