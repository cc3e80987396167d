"""Blobs over a connection that fails in the middle: nothing is lost, nothing counts twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fkd_common.artifacts import BlobStore
from fkd_common.errors import CorruptTransferError, ExitCode, FkdError, UnreachableError
from fkd_common.method.student_layout import initial_student
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import decode
from fkd_server.prepare import EXTRACTOR_FILE
from fkd_server.run_state import RunState

from .conftest import Site, Start
from .coordinator import CLASSES, DIM, student_message, watched

Join = Callable[..., Site]
MIB = 1 << 20


def lost(reply: bytes) -> bytes:
    """The coordinator has answered, and the answer never arrives."""
    raise UnreachableError("connection reset")


def damaged(reply: bytes) -> bytes:
    """One bit of a chunk flips on its way."""
    answer = pb.GetChunkResponse.FromString(reply)
    answer.data = answer.data[:-1] + bytes([answer.data[-1] ^ 1])
    return answer.SerializeToString()


def task_of(site: Site) -> pb.Task:
    answer = site.session.next_task()
    assert answer.HasField("task")
    return answer.task


def offsets(site: Site) -> list[int]:
    """Where the chunks sent so far began."""
    sent = zip(site.transport.calls, site.transport.requests, strict=True)  # type: ignore[attr-defined]
    return [pb.PutChunkRequest.FromString(raw).offset for name, raw in sent if name == "PutChunk"]


@pytest.mark.scenario(4)
def test_an_upload_goes_on_where_the_coordinator_is_after_a_lost_reply(start: Start, join: Join) -> None:
    """Scenario 4."""
    served = start()
    transport = watched(served)
    site = join(served, transport=transport)
    key = task_of(site).key
    transport.after["PutChunk", 2] = lost
    assert not site.transfer.submit(student_message(served, key)).duplicate
    # The second chunk is repeated, and the answer to that says that it had arrived.
    assert offsets(site) == [0, MIB, MIB, 2 * MIB]
    assert served.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(4)
def test_a_restarted_client_resumes_its_predecessors_upload(start: Start, join: Join) -> None:
    """Scenario 4: a process that died after two chunks repeats at most one."""
    served = start()
    transport = watched(served)
    site = join(served, transport=transport)
    key = task_of(site).key

    def die() -> None:
        raise FkdError("killed")

    transport.before["PutChunk", 3] = die
    with pytest.raises(FkdError, match="killed"):
        site.transfer.submit(student_message(served, key))

    again = join(served)
    assert task_of(again).key == key
    again.transfer.submit(student_message(served, key))
    assert offsets(again) == [0, 2 * MIB]
    assert served.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(5, 6)
def test_a_commit_whose_reply_was_lost_is_acknowledged_as_duplicate_and_counts_once(
    start: Start, join: Join
) -> None:
    """Scenarios 5 and 6."""
    served = start(min_clients=2)
    transport = watched(served)
    a, b = join(served, "a", transport), join(served, "b")
    a.session.call("NextTask", pb.NextTaskRequest(), pb.NextTaskResponse)  # says that a is ready
    key = task_of(b).key
    assert task_of(a).key == key

    transport.after["SubmitStudent", 1] = lost
    receipt = a.transfer.submit(student_message(served, key))
    assert receipt.duplicate
    assert served.coordinator.open is not None
    assert set(served.coordinator.open.uploads) == {"a"}

    b.transfer.submit(student_message(served, key))
    assert served.coordinator.state is RunState.COMPLETED
    # Once more after the phase has closed: the receipt stands, and nothing is counted.
    late = a.transfer.submit(student_message(served, key))
    assert late.duplicate
    assert late.receipt == receipt.receipt


@pytest.mark.scenario(5)
def test_both_ledgers_book_a_repeated_upload_as_wasted_and_its_payload_once(start: Start, join: Join) -> None:
    served = start(hidden=(8,))  # small enough to travel inside the message
    site = join(served)
    message = student_message(served, task_of(site).key)
    assert not site.transfer.submit(message).duplicate
    once = site.session.ledger.total()
    assert once.wasted == 0
    assert site.transfer.submit(message).duplicate
    twice = site.session.ledger.total()
    assert twice.payload_up == once.payload_up
    extra = (twice.message_up + twice.message_down) - (once.message_up + once.message_down)
    assert twice.wasted == extra
    assert served.run.service.ledger.rows() == site.session.ledger.rows()


@pytest.mark.scenario(21)
def test_a_download_that_arrives_damaged_is_repeated(start: Start, join: Join, prepared: Path) -> None:
    served = start()
    transport = watched(served)
    site = join(served, transport=transport)
    transport.after["GetChunk", 2] = damaged
    blob = site.transfer.fetch_kept(site.run.artifacts["extractor"], setup_key(site))
    assert blob == (prepared / EXTRACTOR_FILE).read_bytes()
    assert transport.calls.count("GetChunk") == 6  # three chunks, twice


@pytest.mark.scenario(21)
def test_a_download_damaged_again_and_again_ends_with_exit_code_5(start: Start, join: Join) -> None:
    served = start()
    transport = watched(served)
    site = join(served, transport=transport)
    transport.after.update({("GetChunk", n): damaged for n in (1, 4, 7)})
    with pytest.raises(CorruptTransferError, match="extractor arrived damaged 3 times") as caught:
        site.transfer.fetch_kept(site.run.artifacts["extractor"], setup_key(site))
    assert caught.value.exit_code == ExitCode.UNREACHABLE


@pytest.mark.scenario(29)
def test_a_kept_artifact_is_downloaded_once_and_again_when_the_disk_spoilt_it(
    start: Start, join: Join, tmp_path: Path
) -> None:
    served = start()
    transport = watched(served)
    site = join(served, "a", transport)
    reference = site.run.artifacts["extractor"]
    blob = site.transfer.fetch_kept(reference, setup_key(site))
    assert site.transfer.fetch_kept(reference, setup_key(site)) == blob
    assert transport.calls.count("GetChunk") == 3

    file = BlobStore(tmp_path / "artifacts" / "a").path(reference.sha256.hex())
    file.write_bytes(blob[:-1] + bytes([blob[-1] ^ 1]))
    assert site.transfer.fetch_kept(reference, setup_key(site)) == blob
    assert transport.calls.count("GetChunk") == 6
    assert file.read_bytes() == blob


def test_the_student_a_client_receives_is_the_one_the_run_starts_with(start: Start, join: Join) -> None:
    served = start(seed=7)
    site = join(served)
    task = task_of(site)
    received = decode(site.transfer.fetch(task.inputs[0], task.key))
    expected = initial_student(7, DIM, served.config.hidden, len(CLASSES), served.config.norm)
    assert received.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(received[name], values)


def setup_key(site: Site) -> types.TaskKey:
    return types.TaskKey(run_id=site.run.run_id, phase=types.PHASE_SETUP)
