"""The ledger against the formulas: student 1,727,040 bytes each way, residuals 4·m·C, and what is wasted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_bench.methods.fed3r import FED3R
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError, InvalidUploadError, StaleError
from fkd_common.exchange_method import Federation
from fkd_common.ledger import ByteCount
from fkd_common.method.moments import accumulate, apply_moments, moment_targets, pack_symmetric
from fkd_common.method.refinement import gradient, likelihood_residual
from fkd_common.method.student_layout import payload_bytes, student_layout
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import METHODS
from fkd_common.tensors import decode, encode
from fkd_server.run_folder import bytes_per_client
from fkd_server.run_state import RunState

from .tiny import MOMENTS, RESIDUALS, STUDENT, VOTES, Site, TinyRun, filled, inline, tiny_run

FULL_SIZE = {
    "anchors": np.random.default_rng(0).normal(size=(500, 512)).astype(np.float32),
    "classes": tuple("0123456789"),
    "hidden": (512, 256, 128),
    "dropout": (0.4, 0.3, 0.2),
    "norm": "batch",
    "correction": ("anchors",),
    "anchor_lambda_grid": (100.0,),
}
STUDENT_BYTES = 1_727_040


def full_round(run: TinyRun) -> list[Site]:
    """Two clients, one round with residuals on 500 anchors, every byte through the protocol."""
    sites = [run.site("a"), run.site("b")]
    for site in sites:
        site.poll()
    for i, site in enumerate(sites):
        task = site.poll().task
        site.fetch(task.inputs[0], task.key)
        upload = site.send(encode(filled(run.method, i / 100)), task.key)
        site.call("SubmitStudent", key=task.key, upload=upload, num_samples=10, reliability=1.0)
    for site in sites:
        task = site.poll().task
        site.fetch(task.inputs[0], task.key)
        residuals = {"residuals": np.zeros((500, 10), dtype=np.float32)}
        site.call("SubmitResiduals", key=task.key, upload=inline(encode(residuals)), num_samples=10)
    for site in sites:
        task = site.poll().task
        student, fused = task.inputs  # the student is the one it has
        assert (student.name, fused.name, task.key.phase) == ("student", "fused_residuals", VOTES)
        site.fetch(fused, task.key)
        votes = [pb.Vote(candidate=name, correct=1) for name in ("student", "anchors")]
        site.call("SubmitVotes", key=task.key, votes=votes, num_validation=2)
    return sites


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    run = tiny_run(tmp_path_factory.mktemp("run"), **FULL_SIZE)  # type: ignore[arg-type]
    full_round(run)
    assert run.coordinator.state is RunState.COMPLETED
    return run


def booked(run: TinyRun, client: str, phase: str) -> ByteCount:
    return run.service.ledger.total(lambda key: (key.client, key.round, key.phase) == (client, 1, phase))


def test_the_formula_of_the_student_is_the_layouts(run: TinyRun) -> None:
    config = run.coordinator.config
    assert payload_bytes(student_layout(512, config.hidden, 10, config.norm)) == STUDENT_BYTES
    assert STUDENT_BYTES == 4 * (428_672 + 129 * 10) + 7_192


@pytest.mark.parametrize("client", ["a", "b"])
def test_payload_is_what_the_formulas_say(run: TinyRun, client: str) -> None:
    student, residuals = booked(run, client, "student"), booked(run, client, "residuals")
    votes = booked(run, client, "votes")
    assert (student.payload_up, student.payload_down) == (STUDENT_BYTES, STUDENT_BYTES)
    assert (residuals.payload_up, residuals.payload_down) == (4 * 500 * 10, STUDENT_BYTES)
    assert (votes.payload_up, votes.payload_down) == (0, 4 * 500 * 10)
    total = run.service.ledger.total(lambda key: key.client == client)
    assert (total.payload_up, total.payload_down) == (1_747_040, 3_474_080)


def test_messages_cost_at_most_one_percent_more_than_their_payload(run: TinyRun) -> None:
    total = run.service.ledger.total()
    payload = total.payload_up + total.payload_down
    assert payload < total.message_up + total.message_down < 1.01 * payload
    assert total.wasted == 0


def test_the_summary_is_the_mean_over_clients(run: TinyRun) -> None:
    mean = bytes_per_client(run.service.ledger)
    assert mean["payload"] == {"up": 1_747_040, "down": 3_474_080}
    assert mean["by_phase"]["residuals"]["payload"] == {"up": 20_000, "down": STUDENT_BYTES}  # type: ignore[index, call-overload]


def test_a_first_model_costs_what_fed3r_costs_and_no_student(tmp_path: Path) -> None:
    """p = 513: moments 4·(p·(p+1)/2 + p·C) up, FED3R's very upload; a step 4·p·C each way. FED3R's layout agrees."""
    changes: dict[str, Any] = {
        **FULL_SIZE,
        "correction": ("moments",),
        "lambda_grid": (10.0,),
        "refine_steps": 1,
    }
    run = tiny_run(tmp_path, correction_at_start=True, **changes)
    z = np.concatenate([np.random.default_rng(1).normal(size=(20, 512)), np.ones((20, 1))], axis=1)
    z, labels, sites = z.astype(np.float32), np.arange(20) % 10, [run.site("a"), run.site("b")]
    sums = accumulate(z, moment_targets(labels, None, 10, 8.0, 0.0))
    moments = {"A": pack_symmetric(sums.A, 0).astype(np.float32), "B": sums.B.astype(np.float32)}
    for site in sites:
        site.poll()
    for site in sites:
        task = site.poll().task
        assert (list(task.inputs), task.key.phase) == ([], MOMENTS)
        site.call("SubmitMoments", key=task.key, upload=site.send(encode(moments), task.key), num_samples=20)
    for site in sites:
        task = site.poll().task
        (solution,) = task.inputs
        V = decode(site.fetch(solution, task.key))["V"]
        missed = likelihood_residual(np.zeros((20, 10)), apply_moments(z, V), labels)
        upload = site.send(encode({"G": gradient(z, missed)}), task.key)
        site.call("SubmitGradient", key=task.key, upload=upload, num_samples=20)
    assert sites[0].poll().task.key.phase == VOTES

    def counts(phase: str) -> tuple[int, int]:
        count = run.service.ledger.total(lambda key: (key.client, key.phase) == ("a", phase))
        return count.payload_up, count.payload_down

    assert (counts("moments"), counts("refine_1")) == ((547_884, 0), (20_520, 20_520))
    given = Federation(
        RunConfig(method="fed3r"), 10, np.zeros(0, np.uint8), run.method.anchor_embeddings, bytes
    )
    assert payload_bytes(FED3R(given).upload_layout(1, 20)) == 547_884


# -- what does not count --


@pytest.fixture
def tiny(tmp_path: Path) -> tuple[TinyRun, Site]:
    run = tiny_run(tmp_path)
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    return run, a


def test_a_refused_upload_is_wasted(tiny: tuple[TinyRun, Site]) -> None:
    run, a = tiny
    with pytest.raises(InvalidUploadError):
        a.submit_student(1, filled(run.method, np.nan))
    count = booked(run, "a", "student")
    assert (count.calls, count.payload_up) == (1, 0)
    assert count.wasted == count.message_up > len(encode(filled(run.method, 0.0)))


@pytest.mark.scenario(8)
def test_a_late_upload_is_wasted(tiny: tuple[TinyRun, Site]) -> None:
    """Scenario 8."""
    run, a = tiny
    run.site("b").submit_student(1, filled(run.method, 1.0))
    run.clock.now = 60.0
    run.service.tick()
    with pytest.raises(StaleError) as refused:
        a.submit_student(1, filled(run.method, 1.0))
    assert refused.value.reason == "ROUND_CLOSED"
    count = booked(run, "a", "student")
    assert (count.payload_up, count.wasted) == (0, count.message_up)


@pytest.mark.scenario(5)
def test_a_repeated_upload_counts_once_as_payload_and_is_wasted_the_second_time(
    tiny: tuple[TinyRun, Site],
) -> None:
    """Scenario 5."""
    run, a = tiny
    a.submit_student(1, filled(run.method, 1.0))
    once = booked(run, "a", "student")
    assert a.submit_student(1, filled(run.method, 1.0)).duplicate
    twice = booked(run, "a", "student")
    second = twice.message_up + twice.message_down - once.message_up - once.message_down
    assert twice.payload_up == once.payload_up > 0
    assert (once.wasted, twice.wasted) == (0, second)


@pytest.mark.scenario(22)
def test_a_repeated_or_premature_chunk_counts_once_as_payload(tiny: tuple[TinyRun, Site]) -> None:
    """Scenario 22: the sum of accepted chunks is the blob, however often they came."""
    run, a = tiny
    blob = encode(filled(run.method, 1.0))
    start = 8 + int.from_bytes(blob[:8], "little")
    key, sha256 = a.key(1, STUDENT), inline(blob).sha256

    def put(offset: int, end: int) -> int:
        data = blob[offset:end]
        answer = a.call("PutChunk", key=key, sha256=sha256, size=len(blob), offset=offset, data=data)
        return int(answer.received)

    assert [put(start + 8, len(blob)), put(0, start + 8), put(0, start + 8), put(start + 8, len(blob))] == [
        0, start + 8, start + 8, len(blob),
    ]  # fmt: skip
    assert put(0, 0) == len(blob)
    assert booked(run, "a", "student").payload_up == 0, "nothing counts yet"
    a.call("SubmitStudent", key=key, upload=types.Upload(sha256=sha256, size=len(blob)), num_samples=10)
    count = booked(run, "a", "student")
    assert count.payload_up == len(blob) - start
    assert 0 < count.wasted < count.message_up


@pytest.mark.scenario(20)
def test_a_first_chunk_that_hides_its_header_is_refused(tiny: tuple[TinyRun, Site], tmp_path: Path) -> None:
    """Scenario 20: else its header would be booked as payload."""
    run, a = tiny
    blob = encode(filled(run.method, 1.0))
    with pytest.raises(InvalidUploadError, match="whole header"):
        a.send(blob, a.key(1, STUDENT), step=20)
    assert list((tmp_path / "spool").iterdir()) == []


def test_every_byte_the_meter_saw_is_in_the_ledger(tiny: tuple[TinyRun, Site]) -> None:
    """Invariant I5."""
    run, a = tiny
    before = run.service.ledger.total()
    calls = [
        ("NextTask", {}),
        ("Heartbeat", {"progress": 0.5}),
        ("SubmitStudent", {"key": a.key(1, STUDENT)}),
        ("SubmitVotes", {"key": a.key(1, VOTES)}),
        ("ReportFailure", {"key": a.key(1, STUDENT, run_id="other")}),
        ("GetChunk", {"key": a.key(1, RESIDUALS), "length": 5}),
    ]
    up = down = 0
    for name, fields in calls:
        raw = METHODS[name].request_type(session=a.session, **fields).SerializeToString()
        up += len(raw)
        try:
            down += len(run.answer(METHODS[name], raw))
        except FkdError:
            continue
    after = run.service.ledger.total()
    assert (after.calls - before.calls, after.message_up - before.message_up) == (len(calls), up)
    assert after.message_down - before.message_down == down


def test_the_ledger_does_not_grow_with_rounds_a_client_makes_up(tiny: tuple[TinyRun, Site]) -> None:
    """Invariant I7."""
    run, a = tiny
    for round_number in range(100, 200):
        with pytest.raises(FkdError):
            a.call("ReportFailure", key=a.key(round_number, STUDENT, run_id="other"))
        a.call(
            "GetChunk",
            key=a.key(round_number, STUDENT),
            sha256=bytes.fromhex(run.method.state.student.sha256),
            length=5,
        )
    assert {key.round for key, _ in run.service.ledger.rows()} == {0}
