from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.conftest import Pki, own_surroundings, pki
from tests.server.tiny import TinyRun, tiny_run

__all__ = ["Pki", "own_surroundings", "pki"]


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path / "run")
