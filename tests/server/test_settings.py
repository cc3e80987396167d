"""Of the coordinator's settings, the run configuration is published; the rest stays here."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.config import RunConfig
from fkd_server.settings import ServerSettings


def test_the_published_part_is_a_run_configuration() -> None:
    settings = ServerSettings(rounds=7, hidden=(8,), dropout=(0.1,), port=0, runs=Path("elsewhere"))
    assert settings.run_config() == RunConfig(rounds=7, hidden=(8,), dropout=(0.1,))


def test_where_a_coordinator_runs_does_not_change_the_hash() -> None:
    here, there = ServerSettings(port=1), ServerSettings(port=2, host="::1", threads=3, linger_s=0)
    assert here.run_config().sha256() == there.run_config().sha256() == RunConfig().sha256()


def test_data_is_looked_for_where_it_was_said_then_in_the_environment_then_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FKD_DATA", raising=False)
    assert ServerSettings().data_folder("anchors", None) == Path("shards/anchors")
    monkeypatch.setenv("FKD_DATA", "/data")
    assert ServerSettings().data_folder("anchors", None) == Path("/data/anchors")
    assert ServerSettings().data_folder("anchors", Path("mine")) == Path("mine")
