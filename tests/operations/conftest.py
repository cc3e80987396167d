"""A coordinator over mutual TLS and two sites at work, as the guide for operators assumes them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from PIL import Image

from fkd_common.access.roles import Role
from fkd_server.access.certificates import CertificateAuthority
from fkd_shards.shard import read_shard
from tests.e2e.conftest import World
from tests.e2e.conftest import world as world
from tests.e2e.programs import SMALL, Launcher, Program

SITES = ("site-a", "site-b")


@dataclass
class Federation:
    """Folders named as in the guide: `hub` with `tls` and `run`, `ops` with `alice`, `site` with `tls` and `images`."""

    folder: Path
    world: World
    launch: Launcher
    server: Program | None
    ports: tuple[int, int, int]

    @property
    def hub(self) -> Path:
        return self.folder / "hub"

    def serve(self, hub: Path) -> Program:
        """The coordinator, in whatever folder it has its run and its certificates; called again, it goes on."""
        port, join, http = self.ports
        server = self.launch.start(
            "server",
            ["fkd_server.cli", "--tls", str(hub / "tls"), "--prepared", str(self.world.prepared),
             "--runs", str(hub / "run"), "--port", str(port), "--join-port", str(join),
             "--http-port", str(http), "--http-host", "0.0.0.0", *SMALL,
             "--rounds", "1000", "--residual-every", "3", "--min-clients", "2", "--clients-per-round", "1"],
        )  # fmt: skip
        self.server = server
        return server

    def type(self, commands: str, where: Path) -> subprocess.CompletedProcess[str]:
        """Type commands of the guide on a host."""
        port, _, http = self.ports
        text = commands.replace("hub:50051", f"localhost:{port}").replace("hub:50053", f"localhost:{http}")
        own = {name: value for name, value in os.environ.items() if not name.startswith("FKD_")}
        programs = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=where,
            env={**own, "PATH": programs, "FKD_CACHE": str(self.world.cache)},
            capture_output=True,
            text=True,
            timeout=120,
        )

    def stop_serving(self) -> None:
        assert self.server is not None
        self.server.signal(signal.SIGTERM)
        assert self.server.end() == 0


@pytest.fixture(scope="module")
def federation(world: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """At work, and past its first vote: it has published a model."""
    folder = tmp_path_factory.mktemp("operations")
    launch = Launcher(folder, world.cache, world.prepared)
    hub, ops, site = (folder / name for name in ("hub", "ops", "site"))
    for host in (hub, ops, site):
        host.mkdir()
    authority = CertificateAuthority.create(hub / "tls", ("localhost",))
    authority.issue_folder(Role.OPERATOR, "alice", ops / "alice", 30)
    made = Federation(folder, world, launch, None, _free_ports())
    try:
        server = made.serve(hub)
        for name, data in zip(SITES, "ab", strict=True):
            authority.issue_folder(Role.CLIENT, name, folder / name, 30)
            launch.start(
                name,
                ["fkd_client.cli", "--data", str(world.sites / data), "--server", f"localhost:{made.ports[0]}",
                 "--tls", str(folder / name), "--threads", "1", "--runs", str(folder / name / "run")],
            )  # fmt: skip
        (site / "tls").symlink_to(folder / SITES[0])
        _write_pictures(world.sites / "a", site / "images")
        server.wait_for("round_closed", lambda event: event["round"] >= 4)
        yield made
    finally:
        launch.stop()


def _write_pictures(shard: Path, folder: Path) -> None:
    """The shard's images as files in one folder per class."""
    read = read_shard(shard)
    assert read.labels is not None
    for row, (image, label) in enumerate(zip(read.images, read.labels, strict=True)):
        path = folder / str(label) / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[:, :, 0]).save(path)


def _free_ports() -> tuple[int, int, int]:
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    first, second, third = (one.getsockname()[1] for one in listening)
    for one in listening:
        one.close()
    return first, second, third
