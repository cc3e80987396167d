"""Where programs keep what can be computed again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$FKD_CACHE, else fkd under $XDG_CACHE_HOME or ~/.cache."""
    if given := os.environ.get("FKD_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fkd"
