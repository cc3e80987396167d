"""The pytest plugin behind `make faults`: collects which scenarios were tested and prints what was seen; tests nothing.

A test claims rows with ``@pytest.mark.scenario(6, 7)`` and may say what it observed through the fixture ``seen``;
refusals that it expected with ``pytest.raises`` are noted without being said.
A row passes if at least one of its tests passed and none failed; with ``--scenario-table`` a row that does not
makes the whole session fail.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fkd_common.errors import FkdError
from fkd_common.rpc import to_status
from tests.scenarios import SCENARIOS, Scenario

WIDTH = 100
MAX_SEEN = 3
"""Observations printed per row; all of them are in the JSON."""

_ROW, _SEEN, _REFUSED = "scenario", "seen", "refused"


class Seen:
    """Notes what a test observed, for the table."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item

    def __call__(self, observed: object) -> None:
        """Note a status code, reason, exit code or number."""
        self._item.user_properties.append((_SEEN, " ".join(str(observed).split())))

    def refused(self, how: str) -> None:
        """Note an expected refusal; shown after what tests say themselves."""
        self._item.user_properties.append((_REFUSED, how))


class NotingRaises:
    """`pytest.raises` that also notes with which status and reason the expected refusal came."""

    def __init__(self, context: Any, seen: Seen) -> None:
        self._context, self._seen = context, seen

    def __enter__(self) -> Any:
        return self._context.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        expected = bool(self._context.__exit__(kind, error, trace))
        if expected and isinstance(error, FkdError):
            code = to_status(error).code
            told = f"exit {error.exit_code:d}" if code == code_pb2.INTERNAL else code_pb2.Code.Name(code)
            self._seen.refused(f"{told} {error.reason}")
        return expected


@dataclass
class Row:
    """What became of one scenario."""

    number: int
    fault: str
    expected: str
    seen: dict[str, int] = field(default_factory=dict)
    """How many tests noted each observation of their own."""
    refused: dict[str, int] = field(default_factory=dict)
    """How many tests met each refusal."""
    tests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether something was tested and nothing failed."""
        return bool(self.tests) and not self.failed

    def observations(self) -> str:
        """What the tests noted; else their names; else why there is nothing."""
        if self.failed:
            return "FAILED: " + ", ".join(sorted({_short(name) for name in self.failed}))
        if not self.tests:
            return "skipped" if self.skipped else "no test"
        seen = [*_by_count(self.seen), *_by_count(self.refused)] or sorted(
            {_short(name).removeprefix("test_").replace("_", " ") for name in self.tests}
        )
        more = f" (+{len(seen) - MAX_SEEN} more)" if len(seen) > MAX_SEEN else ""
        return "; ".join(seen[:MAX_SEEN]) + more


def _by_count(notes: Mapping[str, int]) -> list[str]:
    return sorted(notes, key=lambda note: -notes[note])


def _short(node_id: str) -> str:
    return node_id.partition("[")[0].rpartition("::")[2]


class ScenarioTable:
    """Follows a session's reports; works under xdist because it reads nothing but them."""

    def __init__(
        self, catalogue: Mapping[int, Scenario] = SCENARIOS, *, demanded: bool, json_path: Path | None
    ) -> None:
        self._rows = {number: Row(number, row.fault, row.expected) for number, row in catalogue.items()}
        self._demanded = demanded
        self._json_path = json_path

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Attach the rows to the tests, so that their reports carry them."""
        for item in items:
            numbers = sorted({n for marker in item.iter_markers("scenario") for n in marker.args})
            unknown = [n for n in numbers if n not in self._rows]
            if unknown:
                raise pytest.UsageError(f"{item.nodeid}: no scenario {unknown} in tests/scenarios.py")
            item.user_properties.extend((_ROW, number) for number in numbers)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Book one phase (setup, call, teardown) of one test."""
        for number in (value for key, value in report.user_properties if key == _ROW):
            row = self._rows[int(number)]  # type: ignore[call-overload]
            if report.failed:
                row.failed.append(report.nodeid)
            elif report.skipped:
                row.skipped.append(report.nodeid)
            elif report.when == "call":
                row.tests.append(report.nodeid)
                for kind, counts in ((_SEEN, row.seen), (_REFUSED, row.refused)):
                    notes = [str(value) for key, value in report.user_properties if key == kind]
                    for note in dict.fromkeys(notes):
                        counts[note] = counts.get(note, 0) + 1

    @pytest.hookimpl(wrapper=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """Let a row without a passing test fail the session."""
        if self._demanded and self.missing() and not hasattr(session.config, "workerinput"):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        if not self._demanded:
            return
        terminalreporter.write_line("")
        for line in self.rendered().splitlines():
            terminalreporter.write_line(line)
        if self._json_path is not None:
            rows = [{**asdict(row), "passed": row.passed} for row in self._rows.values()]
            self._json_path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")

    def missing(self) -> list[int]:
        """Numbers of the rows that do not pass."""
        return [row.number for row in self._rows.values() if not row.passed]

    def rendered(self) -> str:
        """The table as text of at most 100 columns, its verdict last."""
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("#", justify="right", width=2)
        for title, share in (("scenario", 26), ("expected", 28), ("seen", 35)):
            table.add_column(title, width=share, overflow="fold")
        table.add_column("", width=4, no_wrap=True)
        for row in self._rows.values():
            cells = (
                str(row.number),
                row.fault,
                row.expected,
                row.observations(),
                "pass" if row.passed else "FAIL",
            )
            table.add_row(*map(Text, cells))
        console = Console(width=WIDTH, color_system=None, force_terminal=False)
        with console.capture() as capture:
            console.print(table)
        tests = len({name for row in self._rows.values() for name in row.tests})
        verdict = (
            f"{len(self._rows) - len(self.missing())} of {len(self._rows)} scenarios pass ({tests} tests)"
        )
        if self.missing():
            verdict += f"; not: {', '.join(map(str, self.missing()))}"
        return f"{capture.get()}\n{verdict}"
