from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..e2e.conftest import World, world
from .box import Box, why_not

__all__ = ["world"]

SCRIPT = "#!/opt/fkd/venv/bin/python3\nimport sys\nfrom {module} import main\nsys.exit(main())\n"

PYTHON = (
    ["ProtectHome=tmpfs", f"BindReadOnlyPaths={sys.base_prefix}"]
    if sys.base_prefix.startswith(("/home/", "/root/", "/run/user/"))
    else []
)
"""What shows a unit a Python that lies where units do not see anything; and nothing else that is there."""


@pytest.fixture(scope="module")
def box(world: World) -> Iterator[Box]:
    """A systemd with this checkout's programs in /opt/fkd/venv, and the sites' data in /srv/fkd."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    box = Box()
    try:
        _lay_out(box, world)
        yield box
    finally:
        box.stop()


def _lay_out(box: Box, world: World) -> None:
    box.run(f"{sys.base_prefix}/bin/python3", "-m", "venv", "--without-pip", "/opt/fkd/venv")
    venv = box.root / "opt/fkd/venv"
    packages = venv / f"lib/python3.{sys.version_info.minor}/site-packages"
    (packages / "checkout.pth").write_text("/opt/checkout\n/opt/packages\n")
    for program, module in {"fkd-server": "fkd_server.cli", "fkd-client": "fkd_client.cli"}.items():
        script = venv / "bin" / program
        script.write_text(SCRIPT.format(module=module))
        script.chmod(0o755)
    for unit in ("fkd-server.service", "fkd-client@.service"):
        folder = box.root / f"etc/systemd/system/{unit}.d"
        folder.mkdir()
        (folder / "python.conf").write_text("\n".join(["[Service]", *PYTHON, ""]))
    data = box.root / "srv/fkd"
    data.mkdir(parents=True)
    for source in (world.sites / "a", world.sites / "b", world.prepared):
        shutil.copytree(source, data / source.name)
    shutil.copytree(world.sites / "a", data / "test")
    box.run("chmod", "-R", "go+rX", "/srv/fkd")


def readable_by(box: Box, group: str, folder: Path) -> None:
    """What the operator of a site does with its images: one group may read them, nobody else."""
    inside = f"/{folder.relative_to(box.root)}"
    box.run("chgrp", "-R", group, inside)
    box.run("chmod", "-R", "u=rwX,g=rX,o=", inside)
