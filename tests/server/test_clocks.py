"""Nothing in a run depends on the time of day: neither on the coordinator's clock nor on a client's."""

from __future__ import annotations

import ast
import datetime
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import time_machine

from fkd_common.rpc import METHODS
from fkd_server.run_state import RunState

from .tiny import filled, tiny_run

ROOT = Path(__file__).parents[2]
NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)

TOLD_BY_THE_WALL = {
    "time": {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
}
"""Calls that read the time of day."""

DECIDES = (
    "fkd_server/coordinator.py", "fkd_server/service.py", "fkd_server/method/fkd_rtm.py", "fkd_server/validation.py",
    "fkd_server/spool.py", "fkd_server/run_state.py", "fkd_server/run.py", "fkd_server/grpc_server.py",
    "fkd_server/store.py", "fkd_client/session.py", "fkd_client/client.py", "fkd_client/tasks.py",
    "fkd_client/transfer.py",
)  # fmt: skip
"""Where deadlines, quorums, retries and results are decided. Certificates and tokens have dates."""


def wall_clocks(source: str) -> set[str]:
    """Every call in a source that reads the time of day."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    return {
        f"{ast.unparse(node.value)}.{node.attr}"
        for node in calls
        if node.attr in TOLD_BY_THE_WALL.get(ast.unparse(node.value).rpartition(".")[2], set())
    }


@pytest.mark.scenario(27)
@pytest.mark.parametrize("path", DECIDES)
def test_what_decides_reads_no_time_of_day(path: str) -> None:
    """Scenario 27."""
    assert wall_clocks((ROOT / path).read_text()) == set()


@pytest.mark.parametrize("source", ["time.time()", "datetime.datetime.now(UTC)", "datetime.now()"])
def test_the_scan_would_notice(source: str) -> None:
    assert wall_clocks(source)


@pytest.mark.scenario(27)
@pytest.mark.parametrize("step_s", [86_400.0, -86_400.0])
def test_a_clock_that_is_set_by_a_day_in_mid_round_changes_nothing(
    tmp_path: Path, step_s: float, seen: Callable[[object], None]
) -> None:
    """Scenario 27: the phase neither closes nor is prolonged, and its seconds left are the same."""
    with time_machine.travel(NOW, tick=True) as clock:
        run = tiny_run(tmp_path)
        run.service._clock = time.monotonic  # the clock of a real run
        a, b = run.site("a"), run.site("b")
        a.poll()
        b.poll()
        before = a.poll().task.deadline_s
        clock.shift(step_s)
        run.service.tick()
        left = a.poll().task.deadline_s
        assert before - 5.0 < left <= before
        a.submit_student(1, filled(run.method, 1.0))
        clock.shift(-step_s)
        b.submit_student(1, filled(run.method, 3.0))
    assert run.coordinator.state is RunState.COMPLETED
    assert not list(filter(None, (event.fields.get("extended") for event in run.events)))
    seen(f"clock {step_s / 3600:+.0f} h: {left:.0f} s left as before; completed")


@pytest.mark.scenario(27)
def test_no_field_of_the_protocol_holds_a_time_of_day() -> None:
    """Scenario 27: clients get seconds that are left, so that their clocks do not matter."""
    todo = [
        kind.DESCRIPTOR for method in METHODS.values() for kind in (method.request_type, method.response_type)
    ]
    while todo:
        for field in todo.pop().fields:
            assert not {"timestamp", "date", "clock"} & set(field.name.split("_")), field.full_name
            assert not field.name.endswith("_at"), field.full_name
            if field.message_type is not None:
                assert field.message_type.full_name != "google.protobuf.Timestamp", field.full_name
                todo.append(field.message_type)
