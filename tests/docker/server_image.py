"""Builds the coordinator's image without an engine: the Dockerfile's own steps, in a root made of this machine's."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.docker.container import Container, Mount, copy_accounts
from tests.docker.dockerfile import Stage, copy_context, stages_of

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""What an engine sets while it builds."""


@dataclass(frozen=True)
class ServerImage:
    """What the final stage holds, laid out on this machine."""

    root: Path
    """Its own files, to which a container adds this machine's programs."""
    installed: Path
    """/opt/fkd."""
    stage: Stage

    def container(self, root: Path, state: Path, flags: Mapping[str, str] | None = None) -> Container:
        """A container of this image, with nothing to write to but its volume and /tmp.

        Args:
            root: An empty folder for its root.
            state: What is mounted at the declared volume.
            flags: Environment beside the image's.
        """
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=root.parent))
        scratch.chmod(0o1777)
        user, group = (int(number) for number in self.stage.only("USER").split(":"))
        return Container(
            root,
            [
                Mount(self.installed, "/opt/fkd"),
                Mount(state, self.stage.only("VOLUME"), writable=True),
                Mount(scratch, "/tmp", writable=True),
            ],
            {**self.stage.pairs("ENV"), **(flags or {})},
            workdir=self.stage.only("WORKDIR"),
            user=user,
            group=group,
        )

    def command(self, *flags: str) -> list[str]:
        """What the image runs, given flags."""
        return [*self.stage.listed("ENTRYPOINT"), *flags]


@functools.cache
def server_image() -> ServerImage:
    """The image, built once for all tests of a process, which takes it away when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="fkd-server-image-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    return build_server_image(folder)


def build_server_image(folder: Path) -> ServerImage:
    """Run the steps of server.Dockerfile: RUN in a container that may write its root, COPY as copies."""
    stages = stages_of("server.Dockerfile")
    root, installed = folder / "build", folder / "opt"
    for place in (root, installed):
        place.mkdir(parents=True)
    copy_context(root / "src")
    # pip has to find the registry as it does here; everything else is the Dockerfile's.
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    settings["PATH"] = f"{Path(sys.base_prefix, 'bin')}:{PATH}"
    builder = Container(
        root,
        [Mount(Path("/etc"), "/etc"), Mount(installed, "/opt/fkd", writable=True)],
        settings,
        workdir=stages["build"].only("WORKDIR"),
        user=0,
        group=0,
        writable_root=True,
    )
    for step in stages["build"].all("RUN"):
        _do(builder, step)
    final = folder / "final"
    copy_accounts(final)
    (final / "var/lib").mkdir(parents=True)
    for step in stages["final"].all("RUN"):
        _do(Container(final, environment={"PATH": PATH}, user=0, group=0, writable_root=True), step)
    for step in stages["final"].all("COPY"):
        stage, source, target = step.removeprefix("--from=").split()
        if source != target:
            assert stage == "build" and target.startswith("/opt/fkd/"), step
            shutil.copy(root / source.lstrip("/"), installed / target.removeprefix("/opt/fkd/"))
    return ServerImage(final, installed, stages["final"])


def _do(container: Container, step: str) -> None:
    done = container.run(["sh", "-c", step], timeout=300.0)
    assert done.returncode == 0, f"{step}: {done.stdout}{done.stderr}"
