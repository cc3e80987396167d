"""The project's unit files and how they are read here; asserts nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "deploy" / "systemd"
INSTALL = SOURCE / "install.sh"
SERVER, CLIENT = SOURCE / "fkd-server.service", SOURCE / "fkd-client@.service"


def values(unit: Path, key: str) -> list[str]:
    """All values of a key, in order."""
    lines = (line.partition("=") for line in unit.read_text().splitlines() if not line.startswith("#"))
    return [value for name, _, value in lines if name == key]


def install(
    *arguments: str | Path, umask: int = 0o022, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run install.sh."""
    usual = {name: value for name, value in os.environ.items() if not name.startswith("FKD_")}
    return subprocess.run(
        [INSTALL, *map(str, arguments)],
        env={**usual, **environment},
        umask=umask,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )
