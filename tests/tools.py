"""Programs that tests need and that a machine may lack; where they must be there, absence fails."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest


def require_tool(name: str) -> str:
    """The path of a program, from this environment or the machine.

    Without it the test is skipped, or fails where FKD_REQUIRE_TOOLS is set, as in continuous integration.
    """
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is None:
        absent(f"{name} is not installed here")
    return found


def absent(reason: str) -> NoReturn:
    """Something a test needs is not to be had: skip, or fail where FKD_REQUIRE_TOOLS is set."""
    if os.environ.get("FKD_REQUIRE_TOOLS"):
        pytest.fail(f"{reason}, and FKD_REQUIRE_TOOLS is set")
    pytest.skip(reason)
