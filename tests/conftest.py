"""For all tests: the tables of scenarios and of deployment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.deploy_table import DeployTable
from tests.scenario_table import NotingRaises, ScenarioTable, Seen


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scenarios")
    group.addoption(
        "--scenario-table",
        action="store_true",
        help="print the table of faults; fail unless every row passes",
    )
    group.addoption(
        "--deploy-table",
        action="store_true",
        help="print the table of what deploys and operates a run; fail unless all of it passes",
    )
    group.addoption("--scenario-json", type=Path, metavar="PATH", help="also write the table as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background ignores Ctrl-C, and so would every program that a test starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    table = ScenarioTable(
        demanded=config.getoption("scenario_table"), json_path=config.getoption("scenario_json")
    )
    config.pluginmanager.register(table, "scenario-table")
    if config.getoption("deploy_table"):
        config.pluginmanager.register(DeployTable(), "deploy-table")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that start processes: what takes long must not be left for the end."""
    first = {item.path for item in items if item.get_closest_marker("e2e")}
    items.sort(key=lambda item: item.path not in first)


@pytest.fixture(autouse=True)
def _note_refusals(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a test of a scenario, refusals expected with `pytest.raises` enter the table by status and reason."""
    if request.node.get_closest_marker("scenario") is None:
        return
    real, note = pytest.raises, Seen(request.node)

    def raises(*arguments: Any, **keywords: Any) -> Any:
        context = real(*arguments, **keywords)
        return NotingRaises(context, note) if hasattr(context, "__exit__") else context

    monkeypatch.setattr(pytest, "raises", raises)


@pytest.fixture(autouse=True)
def _logs_of_its_own() -> Iterator[None]:
    """A program started in a test writes its log where that test captured it, and no later one does."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def seen(request: pytest.FixtureRequest) -> Seen:
    """Notes what was observed, for the table that `make faults` prints."""
    return Seen(request.node)
