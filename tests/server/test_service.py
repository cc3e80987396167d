"""The protocol without a network: what is served, refused and repeated."""

from __future__ import annotations

import pytest

from fkd_common.artifacts import sha256_hex
from fkd_common.config import RunConfig
from fkd_common.errors import (
    InvalidUploadError,
    NotFoundError,
    RefusedError,
    SupersededError,
)
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.rpc import MAX_CHUNK_BYTES, METHODS, PROTOCOL_VERSION
from fkd_common.tensors import encode

from .tiny import CLASSES, STUDENT, Site, TinyRun, filled, tiny_config

# -- registration --


def test_registration_tells_what_the_run_is(run: TinyRun) -> None:
    told = run.site("a").told
    assert (told.run_id, tuple(told.classes), len(told.session)) == ("run-1", CLASSES, 16)
    assert told.config_json == tiny_config().canonical_json()
    assert told.config_sha256 == RunConfig.model_validate_json(told.config_json).sha256()
    assert [reference.name for reference in told.artifacts] == ["extractor"]


@pytest.mark.scenario(34)
def test_another_protocol_version_is_refused(run: TinyRun) -> None:
    """Scenario 34."""
    request = pb.RegisterRequest(protocol_version=PROTOCOL_VERSION + 1, client_name="a")
    with pytest.raises(RefusedError) as refused:
        run.answer(METHODS["Register"], request.SerializeToString())
    assert refused.value.reason == "PROTOCOL_VERSION"


@pytest.mark.scenario(34)
def test_unknown_fields_are_ignored(run: TinyRun) -> None:
    """Scenario 34."""
    request = pb.RegisterRequest(protocol_version=PROTOCOL_VERSION, client_name="a").SerializeToString()
    unknown = b"\xfa\x3f\x05hello"  # field 127, length-delimited
    assert pb.RegisterResponse.FromString(run.answer(METHODS["Register"], request + unknown)).session


@pytest.mark.scenario(20)
def test_a_name_that_could_escape_is_refused(run: TinyRun) -> None:
    with pytest.raises(InvalidUploadError, match="client name"):
        run.site("../a")


@pytest.mark.scenario(22)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("raw", [b"\xff", b"\x0a\xff", b"\x0a\x7fshort", bytes(range(256))])
def test_a_malformed_message_is_refused_whatever_the_method(run: TinyRun, name: str, raw: bytes) -> None:
    with pytest.raises(InvalidUploadError) as refused:
        run.answer(METHODS[name], raw)
    assert refused.value.reason == "MALFORMED"
    assert run.service.ledger.total().wasted == len(raw)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "Register"])
def test_every_method_asks_for_a_session(run: TinyRun, name: str) -> None:
    """Of this run; one that made itself up, or was superseded, is told so."""
    with pytest.raises(RefusedError, match="serves another run, run-1"):
        run.answer(METHODS[name], METHODS[name].request_type().SerializeToString())
    made_up = run.site("a").session[:4] + bytes(12)
    with pytest.raises(SupersededError):
        run.answer(METHODS[name], METHODS[name].request_type(session=made_up).SerializeToString())


def test_a_coordinator_that_was_asleep_holds_it_against_nobody(run: TinyRun) -> None:
    """Stopped for a minute: heartbeats could not be heard, the phase could not be answered."""
    sites = [run.site(name) for name in "ab"]
    for site in sites:
        site.poll()
    run.clock.now = 70.0
    run.service.was_asleep(69.0)
    run.service.tick()
    assert len(run.coordinator.attendance.live()) == 2
    assert "59 s to the deadline" in run.service.waiting_for()


# -- tasks and artifacts --


def test_a_poll_that_may_be_held_is_not_answered_with_a_wait(run: TinyRun) -> None:
    a = run.site("a")
    request = pb.NextTaskRequest(session=a.session, wait_s=5.0).SerializeToString()
    before = run.service.ledger.total().calls
    assert run.service.handle(METHODS["NextTask"], request, hold=True) is None
    assert run.service.ledger.total().calls == before
    assert a.poll().wait.reason == "1 of 2 clients ready: a"
    run.site("b").poll()
    assert run.service.handle(METHODS["NextTask"], request, hold=True) is not None


def test_listeners_hear_of_every_change_a_waiting_client_cares_about(run: TinyRun) -> None:
    heard: list[str] = []
    run.service.on_change(lambda: heard.append("!"))
    a, b = run.site("a"), run.site("b")
    a.poll()
    assert heard == []
    b.poll()
    assert heard == ["!"]
    run.clock.now = 60.0
    run.service.abort("stopped")
    assert heard == ["!", "!"]


def test_a_task_says_what_to_read_and_how_long_there_is(run: TinyRun, sites: tuple[Site, Site]) -> None:
    run.clock.now = 5.0
    task = sites[0].poll().task
    assert (task.key.run_id, task.key.round, task.key.phase) == ("run-1", 1, STUDENT)
    assert (task.deadline_s, task.config_sha256) == (55.0, tiny_config().sha256())
    (student,) = task.inputs
    blob = sites[0].fetch(student, task.key, step=100)
    assert sha256_hex(blob) == student.sha256.hex() == run.method.state.student.sha256


@pytest.mark.parametrize("offset, length", [(0, 0), (0, MAX_CHUNK_BYTES + 1), (10**6, 1), (2**63, 1)])
def test_a_chunk_outside_the_artifact_is_refused(
    run: TinyRun, sites: tuple[Site, Site], offset: int, length: int
) -> None:
    sha256 = bytes.fromhex(run.method.state.student.sha256)
    with pytest.raises(InvalidUploadError) as refused:
        sites[0].call("GetChunk", key=sites[0].key(1, STUDENT), sha256=sha256, offset=offset, length=length)
    assert refused.value.reason == "OUT_OF_RANGE"


def test_another_clients_upload_is_not_served(run: TinyRun, sites: tuple[Site, Site]) -> None:
    a, b = sites
    a.submit_student(1, filled(run.method, 1.0))
    digest = bytes.fromhex(sha256_hex(encode(filled(run.method, 1.0))))
    for sha256 in (digest, b"", b"../../etc/passwd", bytes(32)):
        with pytest.raises(NotFoundError):
            b.call("GetChunk", key=b.key(1, STUDENT), sha256=sha256, offset=0, length=10)


def test_a_heartbeat_says_when_the_task_is_closed(run: TinyRun, sites: tuple[Site, Site]) -> None:
    a, _ = sites
    assert not a.call("Heartbeat", key=a.key(1, STUDENT), progress=0.5, activity="teacher").task_closed
    assert a.call("Heartbeat", key=a.key(9, STUDENT)).task_closed
    assert not a.call("Heartbeat", activity="embedding").task_closed
