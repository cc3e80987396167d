"""Settings come from what a test says, not from the environment it happens to run in."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)
