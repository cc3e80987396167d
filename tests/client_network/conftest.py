from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fkd_client.run_info import RunInfo
from fkd_client.session import Session
from fkd_client.transfer import Transfer
from fkd_common.artifacts import BlobStore
from fkd_common.choices import UNCODED
from fkd_common.rpc import Transport
from fkd_server.settings import ServerSettings

from .coordinator import PATIENCE_S, Served, serve, watched, write_prepared

Start = Callable[..., Served]


class Site:
    """A client without data: session, run and transfer over one transport, registered."""

    def __init__(self, name: str, transport: Transport, cache: Path) -> None:
        self.transport = transport
        self.session = Session(transport, name, PATIENCE_S)
        self.run: RunInfo = self.session.register()
        self.transfer = Transfer(self.session, self.run, BlobStore(cache))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_prepared(tmp_path_factory.mktemp("network") / "prepared")


@pytest.fixture
def start(prepared: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts coordinators whose student is 2.2 MB: three chunks."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Served:
            given: dict[str, Any] = {
                "min_clients": 1, "min_cohort": 1, "rounds": 1, "hidden": (1024,), "dropout": (0.1,), "correction": (),
                **UNCODED,
                "personal": (), "clients_per_round": 1.0, "heartbeat_s": 0.1, "heartbeat_limit_s": PATIENCE_S,
            }  # fmt: skip
            places = {"prepared": prepared, "runs": tmp_path / "run"}
            return stack.enter_context(serve(ServerSettings(**{**given, **places, **settings}), tmp_path))

        yield start


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Registers clients with a coordinator; their sessions end with the test."""
    with ExitStack() as stack:

        def join(served: Served, name: str = "a", transport: Transport | None = None) -> Site:
            site = Site(name, transport or watched(served), tmp_path / "artifacts" / name)
            stack.callback(site.session.leave)
            return site

        yield join
