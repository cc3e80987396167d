"""Runs to talk to; settings come from what a test says, not from the environment it happens to run in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .tiny import Site, TinyRun, tiny_run


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("FKD_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path)


@pytest.fixture
def sites(run: TinyRun) -> tuple[Site, Site]:
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    return a, b
