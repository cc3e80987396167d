"""The table of `make deploy-check`: it fails where something failed, was skipped or was not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy_table import AREAS, DeployTable, paths

ROOT = Path(__file__).parents[2]


def report(node: str, outcome: str, when: str = "call", why: object = None) -> pytest.TestReport:
    return pytest.TestReport(
        node,
        (node, 0, node),
        {},
        outcome,
        why,
        when,
        duration=1.0,
        user_properties=[("seen", "1.9")],  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "outcomes, verdict",
    [
        ([], "FAIL"),
        (["passed"], "pass"),
        (["passed", "failed"], "FAIL"),
        (["passed", "skipped"], "FAIL"),
    ],
)
def test_an_area_passes_if_all_of_it_was_tested(outcomes: list[str], verdict: str) -> None:
    table = DeployTable({"units": ["tests/units/"]})
    for number, outcome in enumerate(outcomes):
        why = ("f", 1, "Skipped: no systemd") if outcome == "skipped" else None
        table.pytest_runtest_logreport(report(f"tests/units/t.py::test_{number}", outcome, why=why))
    lines = table.rendered().splitlines()
    assert lines[1].split()[-1] == verdict
    assert lines[-1] == f"{int(verdict == 'pass')} of 1 areas pass"


def test_other_tests_are_not_in_it() -> None:
    table = DeployTable({"units": ["tests/units/"]})
    table.pytest_runtest_logreport(report("tests/server/t.py::test_x", "failed"))
    assert "test_x" not in table.rendered()


def test_every_area_has_tests() -> None:
    assert [path for path in paths() if not (ROOT / path).exists()] == []
    assert len(AREAS) > 8
