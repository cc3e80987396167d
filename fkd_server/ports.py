"""The coordinator's ports, opened and closed together: clients and operators, new clients, people who look on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fkd_common.addresses import join_address
from fkd_common.errors import UsageError
from fkd_server.grpc_server import GrpcServer
from fkd_server.method.federated_method import Json
from fkd_server.run import Run
from fkd_server.settings import ServerSettings
from fkd_server.web.start import SecondPort

if TYPE_CHECKING:
    from fkd_server.access.enrolment import EnrolmentServer
    from fkd_server.access.tls import ServerTls


class Ports:
    """What listens while a run is prepared and served."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._web = SecondPort()
        self.main = GrpcServer(answered=self._web.meters.answered)
        """For clients and operators."""
        self._enrolment: EnrolmentServer | None = None
        self._addresses: dict[str, Json] = {}

    async def open(self, preparing: Callable[[], str]) -> None:
        """Listen, and answer that the run is being prepared: a taken port is noticed before the minutes that takes.

        Args:
            preparing: How far the preparation is.

        Raises:
            UsageError: The settings would serve in plain text, or to people who prove nothing.
            PortInUseError: A port is taken.
        """
        settings, host = self._settings, self._settings.listen_host()
        tls = _tls(settings)
        port = self.main.listen(host, settings.port, tls)
        self._enrolment = _enrolment(settings, tls, host)
        await self._web.start(settings, tls, self.main.unready)
        await self.main.start_preparing(preparing)
        if self._enrolment is not None:
            await self._enrolment.start()
        self._addresses = {
            "address": join_address(host, port),
            "tls": str(settings.tls) if tls else "off",
            "join_port": self._enrolment.port if self._enrolment else None,
            "http": self._web.address or None,
        }

    async def serve(self, run: Run) -> dict[str, Json]:
        """Serve a run from now on; returns where, for the log."""
        await self.main.start(run.service, run.admin)
        self._web.show(run)
        return self._addresses

    async def close(self, grace_s: float) -> None:
        """Refuse new calls, let running ones finish for so long, then stop."""
        if self._enrolment is not None:
            await self._enrolment.stop()
        await self.main.stop(grace_s)
        await self._web.stop()


def _tls(settings: ServerSettings) -> ServerTls | None:
    if settings.tls is None:
        return None
    from fkd_server.access.tls import ServerTls  # not over plain text: certificates cost megabytes

    return ServerTls(settings.tls)


def _enrolment(settings: ServerSettings, tls: ServerTls | None, host: str) -> EnrolmentServer | None:
    """The port for new clients, bound; None where certificates come from elsewhere, or without TLS."""
    if settings.join_port == 0 or not _issues(tls):
        if settings.join_port:
            raise UsageError(
                f"--join-port {settings.join_port} needs --tls with the authority's key in the folder "
                "(`fkd-server certs init`)"
            )
        return None
    assert tls is not None
    from fkd_server.access.enrolment import EnrolmentServer

    following = settings.port + 1 if settings.port else 0  # where any port is good, any port is
    enrolment = EnrolmentServer(tls)
    enrolment.listen(host, settings.join_port or following)
    return enrolment


def _issues(tls: ServerTls | None) -> bool:
    """Whether this coordinator has what it needs to sign certificates."""
    if tls is None:
        return False
    from fkd_server.access.certificates import CertificateAuthority

    return CertificateAuthority.exists(tls.folder)
