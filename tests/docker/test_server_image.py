"""The coordinator's image, built by its own Dockerfile's steps and run as a container would run it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.client_network.coordinator import write_prepared
from tests.docker.container import USER, Container, Running, own_network, require_namespaces
from tests.docker.server_image import ServerImage, server_image

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MAX_MIB = 250
"""Most that /opt/fkd may hold: nobody adds torch by accident."""


@pytest.fixture(scope="module")
def image() -> ServerImage:
    require_namespaces()
    return server_image()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """An empty volume that belongs to the image's user."""
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, USER, USER)
    write_prepared(folder / "prepared")
    return folder


@pytest.fixture
def network() -> Iterator[int]:
    with own_network() as holder:
        yield holder


@pytest.fixture
def container(image: ServerImage, state: Path, tmp_path: Path, network: int) -> Container:
    return replace(image.container(tmp_path / "root", state), network=network)


def serving(image: ServerImage) -> list[str]:
    return image.command("--prepared", "prepared", "--min-clients", "2", "--run-id", "r")


def test_the_program_starts_and_tells_its_release(image: ServerImage, container: Container) -> None:
    said = container.run(image.command("--version"))
    assert (said.returncode, said.stdout, said.stderr) == (0, "fkd-server 0.1.0\n", "")


@pytest.mark.parametrize("module", ["torch", "torchvision", "lightgbm", "sklearn", "scipy", "pip", "pytest"])
def test_the_image_lacks(container: Container, module: str) -> None:
    said = container.run(["python", "-c", f"import {module}"])
    assert f"No module named '{module}'" in said.stderr


def test_the_image_has_every_module_of_the_coordinator(container: Container) -> None:
    code = (
        "import importlib, pkgutil, fkd_server\n"
        "for found in pkgutil.walk_packages(fkd_server.__path__, 'fkd_server.'):\n"
        "    importlib.import_module(found.name)\n"
        "print('all')"
    )
    said = container.run(["python", "-c", code])
    assert said.stdout == "all\n", said.stderr


def test_only_the_volume_and_tmp_can_be_written(container: Container) -> None:
    said = container.run(
        ["sh", "-c", "for at in / /opt/fkd /etc /usr /var/lib/fkd /tmp; do test -w $at && echo $at; done"]
    )
    assert said.stdout.split() == ["/var/lib/fkd", "/tmp"]


def test_the_program_has_neither_root_nor_capabilities(container: Container) -> None:
    said = container.run(["sh", "-c", "id -u; grep -E 'Cap(Eff|Bnd)|NoNewPrivs' /proc/self/status"])
    assert said.stdout.split() == [
        str(USER), "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1",
    ]  # fmt: skip


def test_the_image_is_small(image: ServerImage, record_property: pytest.RecordProperty) -> None:
    sizes = [path.stat().st_size for path in image.installed.rglob("*") if not path.is_symlink()]
    mib = sum(sizes) / 2**20
    print(f"/opt/fkd holds {mib:.0f} MiB in {len(sizes)} files")
    assert 0 < mib < MAX_MIB


def test_as_process_one_it_serves_is_healthy_and_ends_with_0_when_told_to(
    image: ServerImage, container: Container, state: Path, tmp_path: Path
) -> None:
    with container.started(serving(image), tmp_path / "log") as running:
        running.said('"event": "serving"')
        assert healthy(image, container, tmp_path) == 0
        running.signal(signal.SIGTERM)
        assert running.wait(20) == 0
    assert healthy(image, container, tmp_path) == 1
    assert (state / "run/r/state.db").stat().st_uid == USER


def test_the_page_is_in_the_image(image: ServerImage, container: Container, tmp_path: Path) -> None:
    fetch = (
        "import re, urllib.request as u\n"
        "page = u.urlopen('http://127.0.0.1:50053/').read().decode()\n"
        "for name in sorted(set(re.findall(r'(?:src|href)=\"/?(static/[^\"]+)', page))):\n"
        "    print(name, u.urlopen('http://127.0.0.1:50053/' + name).status)"
    )
    with container.started(serving(image), tmp_path / "log") as running:
        running.said('"event": "serving"')
        said = beside(container, tmp_path).run(["python", "-c", fetch])
    assert said.returncode == 0, said.stderr
    assert "static/" in said.stdout and {line.split()[1] for line in said.stdout.splitlines()} == {"200"}


def test_a_container_that_is_killed_goes_on_with_its_run(
    image: ServerImage, container: Container, tmp_path: Path
) -> None:
    with container.started(serving(image), tmp_path / "log") as running:
        running.said('"event": "serving"')
        running.signal(signal.SIGKILL)
        assert running.wait(20) != 0
    with container.started(serving(image), tmp_path / "again") as running:
        running.said('"event": "serving"')
        stop(running)


def healthy(image: ServerImage, container: Container, tmp_path: Path) -> int:
    """The exit code of the image's health check, in the network of a container."""
    command = image.stage.only("HEALTHCHECK").split("CMD ", 1)[1].strip('[]"').split('", "')
    return beside(container, tmp_path).run(command).returncode


def beside(container: Container, tmp_path: Path) -> Container:
    """A second process of a container, as `docker exec` starts one."""
    root = tmp_path / "beside"
    root.mkdir(exist_ok=True)
    return replace(container, root=root)


def stop(running: Running) -> None:
    running.signal(signal.SIGTERM)
    assert running.wait(20) == 0
