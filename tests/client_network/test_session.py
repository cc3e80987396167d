"""A session's life: retries, signs of life, tasks that close, processes that take over."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from fkd_client.cli import unanswered
from fkd_client.session import Session, TaskClosedError
from fkd_client.settings import ClientSettings
from fkd_client.transport import GrpcTransport
from fkd_common.errors import (
    ExitCode,
    FkdError,
    RefusedError,
    RunAbortedError,
    StaleError,
    SupersededError,
    UnreachableError,
)
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import PREPARING

from .conftest import Site, Start
from .coordinator import PATIENCE_S, student_message, until, watched

Join = Callable[..., Site]


def unreachable() -> None:
    raise UnreachableError("connection refused")


def raised_by(action: Callable[[], Any], kind: type[FkdError]) -> FkdError:
    """The error that repeating an action ends in."""
    raised: list[FkdError] = []

    def attempt() -> bool:
        try:
            action()
        except kind as error:
            raised.append(error)
        return bool(raised)

    until(attempt)
    return raised[0]


@pytest.mark.scenario(33)
def test_a_call_is_repeated_until_the_coordinator_answers(start: Start) -> None:
    """Scenario 33: a second's interruption costs repeated calls, which both booked and wasted."""
    served = start()
    transport = watched(served)
    transport.before.update({("Register", n): unreachable for n in (1, 2)})
    session = Session(transport, "a", PATIENCE_S)
    assert session.register().run_id == served.run.run_id
    assert transport.calls.count("Register") == 3
    (_, booked), *_ = session.ledger.rows()
    assert booked.calls == 3
    assert booked.wasted == 2 * len(transport.requests[0])
    session.leave()


@pytest.mark.scenario(33)
def test_patience_runs_out_with_exit_code_5() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    session = Session(GrpcTransport(address), "a", patience_s=0.5)
    started = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        session.register()
    assert caught.value.exit_code == ExitCode.UNREACHABLE
    assert time.monotonic() - started >= 0.5
    assert session.ledger.total().calls >= 2
    session.close(notify=False)


def test_closing_a_session_ends_the_waiting_between_attempts() -> None:
    """Someone who stops a client need not wait for its patience."""

    class Unreachable:
        def call(self, method: Any, request: bytes, timeout_s: float) -> bytes:
            session.close(notify=False)
            raise UnreachableError("connection refused")

        def close(self) -> None: ...

    session = Session(Unreachable(), "a", patience_s=600)
    with pytest.raises(UnreachableError):
        session.next_task()
    assert session.ledger.total().calls == 1


def test_a_refusal_is_final(start: Start) -> None:
    served = start()
    served.run.service.abort("enough")
    transport = watched(served)
    session = Session(transport, "a", PATIENCE_S)
    with pytest.raises(RefusedError, match="enough") as caught:
        session.register()
    assert caught.value.exit_code == ExitCode.REJECTED
    assert caught.value.reason == "RUN_ABORTED"
    assert transport.calls == ["Register"]
    session.leave()


def test_heartbeats_keep_a_client_at_a_long_task_alive(start: Start, join: Join) -> None:
    """Work of 15 heartbeats lasts three times the limit of silence."""
    served = start(heartbeat_s=0.1, heartbeat_limit_s=0.5)
    transport = watched(served)
    site = join(served, transport=transport)
    task = site.session.next_task().task
    site.session.begin(task.key)
    site.session.progress(0.25, "training")
    transport.wait_for_calls("Heartbeat", 15)
    client = served.coordinator.attendance.clients["a"]
    assert client.alive
    assert (client.activity, client.progress) == ("training", 0.25)
    site.session.progress(0.5, "training")  # the task is still open


def test_a_task_that_begins_is_not_told_with_what_was_done_before(start: Start, join: Join) -> None:
    served = start(heartbeat_s=0.05, heartbeat_limit_s=5.0)
    transport = watched(served)
    site = join(served, transport=transport)
    task = site.session.next_task().task
    site.session.progress(1.0, "comparing candidates")
    site.session.begin(task.key)
    transport.wait_for_calls("Heartbeat", 2)
    client = served.coordinator.attendance.clients["a"]
    assert (client.activity, client.progress) == ("student", 0.0)


def test_without_signs_of_life_a_client_counts_as_gone_until_its_next_call(start: Start, join: Join) -> None:
    served = start(heartbeat_s=0.1, heartbeat_limit_s=0.5)
    site = join(served)
    client = served.coordinator.attendance.clients["a"]
    until(lambda: not client.alive)
    assert site.session.next_task().HasField("task")
    assert client.alive


def test_an_open_poll_is_sign_of_life_enough(start: Start, join: Join) -> None:
    """Waiting longer than the limit of silence, without a heartbeat."""
    served = start(min_clients=2, heartbeat_s=0.1, heartbeat_limit_s=0.5)
    transport = watched(served)
    site = join(served, transport=transport)
    answer = site.session.call("NextTask", pb.NextTaskRequest(wait_s=1.5), pb.NextTaskResponse)
    assert answer.HasField("wait")
    assert "1 of 2 clients ready" in answer.wait.reason
    assert served.coordinator.attendance.clients["a"].alive
    assert "Heartbeat" not in transport.calls


@pytest.mark.scenario(8)
def test_a_task_that_no_longer_counts_is_abandoned(start: Start, join: Join) -> None:
    """Scenario 8: the phase ends at its deadline without this client, which stops working on it."""
    served = start(min_clients=2, rounds=2, phase_deadline_s=0.5)
    site, other = join(served, "a"), join(served, "b")
    site.session.call("NextTask", pb.NextTaskRequest(), pb.NextTaskResponse)  # says that a is ready
    other.transfer.submit(student_message(served, other.session.next_task().task.key))
    task = site.session.next_task().task
    assert task.key.round == 1
    site.session.begin(task.key)
    raised_by(lambda: site.session.progress(0.1, "training"), TaskClosedError)
    site.session.end()
    finish = pb.FinishTaskRequest(
        key=types.TaskKey(run_id=task.key.run_id, round=1, phase=types.PHASE_PERSONAL)
    )
    with pytest.raises(StaleError):
        site.session.call("FinishTask", finish, pb.SubmitResponse)
    assert site.session.next_task().task.key.round == 2


@pytest.mark.parametrize("preparing", [True, False])
def test_a_client_at_work_learns_that_the_run_was_aborted(start: Start, join: Join, preparing: bool) -> None:
    """A client that still prepares has no task, and need not finish its work to learn it."""
    served = start()
    site = join(served)
    key = None if preparing else site.session.next_task().task.key
    site.session.begin(key)
    served.run.service.abort("the coordinator was stopped")
    error = raised_by(lambda: site.session.progress(0.1, "embedding"), RunAbortedError)
    assert "the coordinator was stopped" in str(error)
    assert error.exit_code == ExitCode.ABORTED


def test_a_private_model_may_be_finished_after_its_phase_and_the_run(start: Start, join: Join) -> None:
    """Nobody but the client itself waits for it."""
    served = start(personal=("prior",), phase_deadline_s=0.5)
    site = join(served)
    site.transfer.submit(student_message(served, site.session.next_task().task.key))
    key = site.session.next_task().task.key
    assert key.phase == types.PHASE_PERSONAL
    site.session.begin(key)
    until(lambda: served.coordinator.over)
    beats = site.session.ledger.total().calls
    until(lambda: site.session.ledger.total().calls > beats + 2)
    site.session.progress(0.9, "fine-tuning")


@pytest.mark.scenario(25)
def test_a_newer_process_of_the_same_name_ends_the_older_ones_work(start: Start, join: Join) -> None:
    """Scenario 25: never two sessions, never double weight."""
    served = start()
    older = join(served, "a")
    task = older.session.next_task().task
    older.session.begin(task.key)
    newer = join(served, "a")
    error = raised_by(lambda: older.session.progress(0.1, "training"), SupersededError)
    assert error.exit_code == ExitCode.REJECTED
    with pytest.raises(SupersededError):
        older.session.next_task()
    older.session.leave()  # says nothing on behalf of the newer process
    assert served.coordinator.attendance.clients["a"].alive
    assert newer.session.next_task().task.key == task.key


@pytest.mark.scenario(28)
def test_a_coordinator_that_answers_is_not_called_unreachable() -> None:
    """Scenario 28: a full disk at the coordinator is not the tunnel's fault."""
    settings = ClientSettings(data="x", server="hub:1", patience_s=9.0)
    disk = UnreachableError("the coordinator's disk does not take data", reason="STORAGE")
    assert unanswered(disk, settings) is disk
    assert "no coordinator answered at hub:1 within 9 s" in str(
        unanswered(UnreachableError("refused"), settings)
    )


def test_a_coordinator_that_is_preparing_is_waited_for_beyond_patience(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    def preparing() -> None:
        raise UnreachableError("the coordinator is preparing the run (42 %)", reason=PREPARING)

    transport = watched(start())
    transport.before.update({("Register", n): preparing for n in range(1, 4)})
    session = Session(transport, "a", 0.4)
    session.register()
    session.leave()
    said = capsys.readouterr().out
    assert "coordinator_not_ready" in said
    assert "(42 %)" in said
    assert "coordinator_unreachable" not in said
