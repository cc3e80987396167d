"""Where programs keep their runs, and what can be computed again."""

from __future__ import annotations

import os
from pathlib import Path

RUNS = Path("run")
"""Where coordinators and clients put their runs unless they are told otherwise."""


def newest_file(folder: Path, *patterns: str) -> Path | None:
    """The file below a folder that was written last, of those that glob patterns name; None if there is none."""
    found = (path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def cache_folder() -> Path:
    """$FKD_CACHE, else fkd under $XDG_CACHE_HOME or ~/.cache."""
    if given := os.environ.get("FKD_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fkd"
