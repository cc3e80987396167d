"""Uploads through the protocol: whole, in chunks, damaged, refused, repeated."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from fkd_common.errors import (
    ConflictError,
    CorruptTransferError,
    FkdError,
    InvalidUploadError,
    RefusedError,
    StaleError,
    SupersededError,
    TooLargeError,
)
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_CHUNK_BYTES
from fkd_common.tensors import encode
from fkd_server.run_state import RunState

from .tiny import RESIDUALS, STUDENT, VOTES, Site, TinyRun, filled, inline, tiny_run


def test_an_upload_may_come_in_chunks(run: TinyRun, sites: tuple[Site, Site]) -> None:
    a, b = sites
    key = a.key(1, STUDENT)
    header = 8 + int.from_bytes(encode(filled(run.method, 3.0))[:8], "little")
    upload = a.send(encode(filled(run.method, 3.0)), key, step=header + 10)
    a.call("SubmitStudent", key=key, upload=upload, num_samples=10, reliability=1.0)
    b.submit_student(1, filled(run.method, 3.0))
    assert run.coordinator.state is RunState.COMPLETED
    run.service.tick()
    assert list(run.uploads.iterdir()) == []


def test_missing_chunks_are_asked_for_and_the_client_stays_in_the_round(
    run: TinyRun, sites: tuple[Site, Site]
) -> None:
    a, _ = sites
    upload = types.Upload(sha256=bytes(32), size=100)
    with pytest.raises(InvalidUploadError) as refused:
        a.call("SubmitStudent", key=a.key(1, STUDENT), upload=upload, num_samples=10, reliability=1.0)
    assert refused.value.reason == "INCOMPLETE_UPLOAD"
    assert a.poll().HasField("task")


@pytest.mark.scenario(21)
def test_a_damaged_upload_may_be_sent_again(run: TinyRun, sites: tuple[Site, Site]) -> None:
    """Scenario 21."""
    a, _ = sites
    damaged = inline(encode(filled(run.method, 1.0)))
    damaged.inline = damaged.inline[:-1] + b"\xff"
    with pytest.raises(CorruptTransferError):
        a.call("SubmitStudent", key=a.key(1, STUDENT), upload=damaged, num_samples=10, reliability=1.0)
    assert not a.submit_student(1, filled(run.method, 1.0)).duplicate


@pytest.mark.parametrize("length", [0, 31, 33, 5000])
def test_a_digest_of_another_length_is_refused(run: TinyRun, sites: tuple[Site, Site], length: int) -> None:
    a, _ = sites
    key = a.key(1, STUDENT)
    blob = encode(filled(run.method, 1.0))
    upload = types.Upload(sha256=bytes(length), size=len(blob))
    for name, fields in (
        ("PutChunk", {"sha256": bytes(length), "size": len(blob), "data": blob}),
        ("SubmitStudent", {"upload": upload, "num_samples": 10, "reliability": 1.0}),
    ):
        with pytest.raises(InvalidUploadError) as refused:
            a.call(name, key=key, **fields)
        assert refused.value.reason == "MALFORMED"


@pytest.mark.scenario(10)
def test_a_nan_is_refused_and_the_round_goes_on_with_the_others(
    run: TinyRun, sites: tuple[Site, Site]
) -> None:
    """Scenario 10."""
    a, b = sites
    with pytest.raises(InvalidUploadError) as refused:
        a.submit_student(1, filled(run.method, np.nan))
    assert refused.value.reason == "NOT_FINITE"
    assert list(run.uploads.iterdir()) == []
    b.submit_student(1, filled(run.method, 2.0))
    (record,) = run.rounds()
    assert record["phases"]["student"]["returned"] == ["b"]
    assert "contains NaN" in record["phases"]["student"]["failed"]["a"]
    assert run.coordinator.state is RunState.COMPLETED


def test_a_long_complaint_is_cut_before_it_is_kept(run: TinyRun, sites: tuple[Site, Site]) -> None:
    a, _ = sites
    many = {f"{'n' * 40}{i}": np.zeros(0, dtype=np.float32) for i in range(12)}
    with pytest.raises(InvalidUploadError):
        a.submit_student(1, many)
    (failed,) = [event.fields["detail"] for event in run.events if event.name == "client_failed"]
    assert len(str(failed)) == 500


@pytest.mark.scenario(13)
def test_the_number_of_samples_may_not_change_within_a_run(tmp_path: Path) -> None:
    """Scenario 13."""
    run = tiny_run(tmp_path, rounds=2)
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    a.submit_student(1, filled(run.method, 1.0), n=10)
    b.submit_student(1, filled(run.method, 1.0), n=20)
    with pytest.raises(RefusedError, match="n_k was 10 and is now 1000000") as refused:
        a.submit_student(2, filled(run.method, 1.0), n=10**6)
    assert refused.value.reason == "SAMPLES_CHANGED"


@pytest.mark.scenario(10)
def test_a_refused_upload_leaves_no_trace_in_the_number_of_samples(
    run: TinyRun, sites: tuple[Site, Site]
) -> None:
    """Scenario 10: nothing written."""
    a, _ = sites
    with pytest.raises(InvalidUploadError):
        a.submit_student(1, filled(run.method, np.nan), n=99)
    assert not a.submit_student(1, filled(run.method, 1.0), n=10).duplicate


@pytest.mark.scenario(5, 6, 7)
def test_duplicates_conflicts_and_stale_uploads(run: TinyRun, sites: tuple[Site, Site]) -> None:
    """Scenarios 5, 6, 7."""
    a, _ = sites
    first = a.submit_student(1, filled(run.method, 1.0))
    again = a.submit_student(1, filled(run.method, 1.0))
    assert (first.duplicate, again.duplicate, first.receipt == again.receipt) == (False, True, True)
    with pytest.raises(ConflictError):
        a.submit_student(1, filled(run.method, 2.0))
    for round_number in (0, 2, 2**32 - 1):
        with pytest.raises(StaleError):
            a.submit_student(round_number, filled(run.method, 1.0))
    upload = inline(encode(filled(run.method, 1.0)))
    with pytest.raises(StaleError) as refused:
        key = a.key(1, STUDENT, run_id="another run")
        a.call("SubmitStudent", key=key, upload=upload, num_samples=10, reliability=1.0)
    assert refused.value.reason == "WRONG_RUN"


@pytest.mark.scenario(7)
@pytest.mark.parametrize("phase", [RESIDUALS, VOTES, 0, 99])
def test_a_submission_under_another_phase_is_refused(
    run: TinyRun, sites: tuple[Site, Site], phase: int
) -> None:
    """Scenario 7."""
    a, _ = sites
    upload = inline(encode(filled(run.method, 1.0)))
    with pytest.raises(InvalidUploadError) as refused:
        a.call("SubmitStudent", key=a.key(1, phase), upload=upload, num_samples=10, reliability=1.0)
    assert refused.value.reason == "WRONG_PHASE"


@pytest.mark.scenario(22)
def test_what_is_too_large_is_refused_before_it_is_kept(
    run: TinyRun, sites: tuple[Site, Site], tmp_path: Path
) -> None:
    """Scenario 22."""
    a, _ = sites
    key = a.key(1, STUDENT)
    with pytest.raises(TooLargeError):
        a.call("PutChunk", key=key, sha256=bytes(32), size=8 << 30, offset=0, data=b"x")
    with pytest.raises(TooLargeError):
        a.call("PutChunk", key=key, sha256=bytes(32), size=500, offset=0, data=bytes(MAX_CHUNK_BYTES + 1))
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.scenario(11)
def test_one_candidate_may_not_be_voted_for_twice(tmp_path: Path) -> None:
    """Scenario 11."""
    run = tiny_run(tmp_path, correction=("anchors",), quorum=0.5)
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    for site in (a, b):
        site.submit_student(1, filled(run.method, 1.0))
    b.call("ReportFailure", key=b.key(1, RESIDUALS), detail="no")
    residuals = inline(encode({"residuals": np.zeros((4, 2), dtype=np.float32)}))
    a.call("SubmitResiduals", key=a.key(1, RESIDUALS), upload=residuals, num_samples=10)
    votes = [pb.Vote(candidate=name, correct=1) for name in ("student", "anchors", "student")]
    with pytest.raises(InvalidUploadError, match="twice"):
        a.call("SubmitVotes", key=a.key(1, VOTES), votes=votes, num_validation=2)


@pytest.mark.scenario(25)
def test_a_second_process_of_a_client_ends_the_first_ones_session(
    run: TinyRun, sites: tuple[Site, Site]
) -> None:
    """Scenario 25."""
    newer = run.site("a")
    with pytest.raises(SupersededError):
        sites[0].poll()
    assert newer.poll().HasField("task")


def test_everyone_learns_that_the_run_is_over_and_leaves(run: TinyRun, sites: tuple[Site, Site]) -> None:
    for site in sites:
        site.submit_student(1, filled(run.method, 1.0))
    for site in sites:
        assert site.poll().finished.completed
        assert not run.service.everyone_left()
        site.call("Leave")
    assert run.service.everyone_left()


@pytest.mark.scenario(19, 20)
@pytest.mark.parametrize("blob", [b"\x80\x04]", (8 << 30).to_bytes(8, "little") + b"{}", b"", b"x" * 300])
def test_a_blob_that_is_no_safetensors_is_refused_and_the_client_set_aside(
    run: TinyRun, sites: tuple[Site, Site], blob: bytes
) -> None:
    """Scenarios 19, 20."""
    a, b = sites
    with pytest.raises(FkdError):
        a.call("SubmitStudent", key=a.key(1, STUDENT), upload=inline(blob), num_samples=1, reliability=1.0)
    b.submit_student(1, filled(run.method, 2.0))
    assert run.coordinator.state is RunState.COMPLETED


@pytest.mark.scenario(4)
def test_a_partial_upload_goes_when_its_phase_closes(tmp_path: Path) -> None:
    """Scenario 4: its client was killed; the others closed the phase without it."""
    run = tiny_run(tmp_path, quorum=0.5, min_cohort=1)
    a, dead = run.site("a"), run.site("dead")
    a.poll()
    dead.poll()
    blob = encode(filled(run.method, 1.0))
    digest = hashlib.sha256(blob).digest()
    key = dead.key(1, STUDENT)
    dead.call("PutChunk", key=key, sha256=digest, size=len(blob), data=blob[:-1])
    assert len(list((tmp_path / "spool").iterdir())) == 1
    a.submit_student(1, filled(run.method, 1.0))
    run.clock.now += run.coordinator.config.phase_deadline_s
    run.service.tick()
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.scenario(4)
def test_a_partial_upload_expires_in_a_phase_that_stays_open(tmp_path: Path) -> None:
    """Scenario 4."""
    run = tiny_run(tmp_path, phase_deadline_s=100_000.0)
    a, dead = run.site("a"), run.site("dead")
    a.poll()
    dead.poll()
    blob = encode(filled(run.method, 1.0))
    digest = hashlib.sha256(blob).digest()
    dead.call("PutChunk", key=dead.key(1, STUDENT), sha256=digest, size=len(blob), data=blob[:-1])
    run.service.tick()
    for _ in range(3):
        run.clock.now += 3600.0
        run.service.tick()
    assert list((tmp_path / "spool").iterdir()) == []
