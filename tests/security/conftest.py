"""Certificates for tests: one authority per session, made the way a person makes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from fkd_client.tls import ClientTls
from fkd_common.access.roles import Role
from fkd_server.access.certificates import CertificateAuthority
from tests.server.tiny import TinyRun, tiny_run

HOSTS = ("localhost", "127.0.0.1")


class Pki:
    """A coordinator's folder and the folders of those it knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "coordinator"
        self.authority = CertificateAuthority.create(self.folder, HOSTS)
        self._holders = folder

    def holder(
        self, name: str, role: Role = Role.CLIENT, days: float = 30.0, folder: str | None = None
    ) -> Path:
        """The folder of a new client or operator."""
        out = self._holders / (folder or name)
        self.authority.issue_folder(role, name, out, days)
        return out

    def client(self, name: str) -> ClientTls:
        """The credentials of a new client."""
        return ClientTls(self.holder(name))


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


@pytest.fixture
def another(tmp_path: Path) -> Pki:
    """An authority that the first one's coordinator does not know."""
    return Pki(tmp_path / "another")


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path / "run")


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings from outside; no logger that a command configured is left behind."""
    monkeypatch.delenv("FKD_TLS", raising=False)
    yield
    structlog.reset_defaults()
