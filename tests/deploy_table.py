"""The pytest plugin behind `make deploy-check`: what deploys and operates a run, area by area; tests nothing.

An area is some folders of tests. It passes if at least one of its tests passed, none failed and none was skipped for
want of a program. What a test notes through the fixture ``seen`` is shown.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

AREAS: Mapping[str, Sequence[str]] = {
    "systemd units": ("tests/systemd/",),
    "Kubernetes manifests": ("tests/kubernetes/",),
    "container images": ("tests/docker/",),
    "health, metrics, page server, traces": ("tests/web/",),
    "alerts and dashboard": ("tests/monitoring/",),
    "the page in a browser": ("tests/page/",),
    "operators' commands": (
        "tests/security/test_operator_verbs.py",
        "tests/security/test_admin.py",
        "tests/server/test_overview.py",
        "tests/server/test_pause.py",
        "tests/common/test_completion.py",
    ),
    "export": ("tests/export/",),
    "predict and check": ("tests/predict/",),
    "three hospitals": ("tests/three_hospitals/",),
    "the guide": ("tests/operations/",),
}
"""Areas and where their tests are."""

WIDTH = 100


def paths() -> list[str]:
    """All folders and files of tests that the table is made of."""
    return [path.rstrip("/") for area in AREAS.values() for path in area]


@dataclass
class Area:
    """What became of an area's tests."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    seen: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether something was tested, and everything that was to be."""
        return self.passed > 0 and not self.failed and not self.skipped

    def notes(self) -> str:
        """What failed or was skipped; else what tests noted."""
        if self.failed:
            return f"FAILED: {', '.join(self.failed)}"
        told = list(dict.fromkeys(self.seen))
        if self.skipped:
            told.insert(0, f"skipped: {'; '.join(dict.fromkeys(self.skipped))}")
        return "; ".join(told)


class DeployTable:
    """Follows a session's reports."""

    def __init__(self, areas: Mapping[str, Sequence[str]] = AREAS) -> None:
        self._paths = areas
        self._areas = {name: Area() for name in areas}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Book one phase (setup, call, teardown) of one test."""
        name = next((n for n, where in self._paths.items() if report.nodeid.startswith(tuple(where))), None)
        if name is None:
            return
        area, test = self._areas[name], report.nodeid.rpartition("::")[2]
        area.seconds += report.duration
        if report.failed:
            area.failed.append(test)
        elif report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "no reason given"
            area.skipped.append(why.removeprefix("Skipped: "))
        elif report.when == "call":
            area.passed += 1
            area.seen += [str(value) for key, value in report.user_properties if key == "seen"]

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Let an area that was not tested whole fail the session."""
        if not all(area.good for area in self._areas.values()):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        terminalreporter.write_line("")
        for line in self.rendered().splitlines():
            terminalreporter.write_line(line)

    def rendered(self) -> str:
        """The table as text, its verdict last."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for title, width in (("what", 24), ("tests", 5), ("seconds", 7), ("seen", 52)):
            table.add_column(title, width=width, overflow="fold", justify="left" if width > 20 else "right")
        table.add_column("", width=4, no_wrap=True)
        for name, area in self._areas.items():
            verdict = "pass" if area.good else "FAIL"
            cells = (name, str(area.passed), f"{area.seconds:.0f}", area.notes(), verdict)
            table.add_row(*map(Text, cells))
        console = Console(width=WIDTH, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        good = sum(area.good for area in self._areas.values())
        return f"{capture.get()}\n{good} of {len(self._areas)} areas pass"


if __name__ == "__main__":
    print(" ".join(paths()))
