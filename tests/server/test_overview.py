"""What an operator is shown of a run: where it stands, who takes part, what it cost; hand-computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.errors import InvalidUploadError, NotFoundError, StaleError
from fkd_common.pb import admin_pb2 as pb
from fkd_server.chronicle import Chronicle, WrittenModel
from fkd_server.event_log import KEPT, PAGE, EventLog
from fkd_server.history import History
from fkd_server.published_files import PublishedFiles

from .tiny import CLASSES, Site, TinyRun, filled, tiny_run


def clients_of(run: TinyRun) -> dict[str, pb.ClientStatus]:
    return {client.name: client for client in run.overview.status().clients}


def test_before_anybody_comes(run: TinyRun) -> None:
    status = run.overview.status()
    assert (status.run_id, status.state, status.round, status.rounds) == ("run-1", "gathering", -1, 1)
    assert (status.phase, status.HasField("deadline_s"), status.HasField("model")) == ("", False, False)
    assert (list(status.classes), status.min_clients) == (list(CLASSES), 2)
    assert status.bytes.calls == 0
    assert status.waiting_for == "0 of 2 clients ready"


def test_a_round_as_it_goes_on(run: TinyRun, sites: tuple[Site, Site]) -> None:
    a, b = sites
    a.submit_student(1, filled(run.method, 0.5), n=30)
    run.clock.now += 5.0
    status = run.overview.status()
    assert (status.state, status.round, status.phase) == ("running", 1, "student")
    assert (list(status.participants), list(status.answered)) == (["a", "b"], ["a"])
    assert status.deadline_s == 55.0
    assert status.serving_s == 5.0
    clients = clients_of(run)
    assert {name: client.state for name, client in clients.items()} == {"a": "answered", "b": "working"}
    assert (clients["a"].uploads, clients["b"].uploads) == (1, 0)
    assert clients["a"].last_seen_s == 5.0
    b.submit_student(1, filled(run.method, 0.5), n=10)
    status = run.overview.status()
    assert (status.state, status.rounds_done) == ("completed", 1)
    clients = clients_of(run)
    assert [(c.samples, c.weight, c.missed) for c in clients.values()] == [(30, 0.75, 0), (10, 0.25, 0)]


@pytest.mark.parametrize("said, shown", [(0.5, 0.5), (float("nan"), 0.0), (7.0, 1.0), (-float("inf"), 0.0)])
def test_what_a_client_says_of_its_progress_is_a_share(
    run: TinyRun, sites: tuple[Site, Site], said: float, shown: float
) -> None:
    sites[0].call("Heartbeat", activity="training", progress=said)
    assert clients_of(run)["a"].progress == shown


def test_what_full_models_would_have_cost(run: TinyRun, sites: tuple[Site, Site]) -> None:
    """Two students: twice up and down, of the extractor's file and a layer of (d + 1) x C float32."""
    for each in sites:
        each.submit_student(1, filled(run.method, 0.5))
    extractor = sites[0].told.artifacts[0].size
    status = run.overview.status()
    assert status.fedavg_bytes == 2 * 2 * (extractor + 4 * (3 + 1) * 2)
    assert [client.fedavg_bytes for client in status.clients] == [status.fedavg_bytes // 2] * 2


def test_bytes_are_the_ledgers(run: TinyRun, sites: tuple[Site, Site]) -> None:
    sites[0].submit_student(1, filled(run.method, 0.5))
    status, rows = run.overview.status(), run.overview.ledger(0).rows
    for field in ("calls", "payload_up", "payload_down", "message_up", "message_down", "wasted"):
        total = sum(getattr(row.bytes, field) for row in rows)
        assert getattr(status.bytes, field) == total
        assert sum(getattr(client.bytes, field) for client in status.clients) == total
        for phase, count in status.bytes_by_phase.items():
            assert getattr(count, field) == sum(
                getattr(row.bytes, field) for row in rows if row.phase == phase
            )
    assert set(status.bytes_by_phase) == {row.phase for row in rows}
    assert run.overview.ledger(len(rows) - 1).rows == rows[-1:]
    assert status.bytes.payload_up > 0


def test_who_missed_a_phase_is_counted(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", rounds=2)
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    a.submit_student(1, filled(run.method, 0.5))
    b.call("ReportFailure", key=b.key(1, 3), detail="no memory")
    assert clients_of(run)["b"].missed == 1
    assert clients_of(run)["a"].missed == 0
    (closed,) = run.overview.rounds(0).rounds
    assert [(p.phase, list(p.returned), dict(p.failed)) for p in closed.phases] == [
        ("student", ["a"], {"b": "no memory"})
    ]
    assert list(run.overview.rounds(2).rounds) == []


def record(number: int) -> dict[str, object]:
    return {"round": number, "seconds": 1.0, "cohort": ["a"], "phases": {}}


def test_accuracies_join_their_round_when_they_are_known() -> None:
    history = History()
    for number in (1, 2):
        history.add(record(number))
    assert history.last_scored() is None
    history.score(1, {"student": 0.25, "published": 0.5, "recall": [1.0, None]})
    scored = history.last_scored()
    assert scored is not None
    assert (scored.round, dict(scored.accuracy)) == (1, {"student": 0.25, "published": 0.5})
    assert list(scored.recall) == [1.0, -1.0]


def test_what_is_handed_out_is_a_copy() -> None:
    history = History()
    history.add(record(1))
    history.rounds(0, 10)[0].seconds = 99.0
    assert history.rounds(0, 10)[0].seconds == 1.0


def test_events_are_numbered_paged_and_bounded() -> None:
    log = EventLog()
    for number in range(KEPT + 5):
        log.add("client_left", {"client": "a", "round": number, "reason": None, "seconds": 1.5})
    first = log.after(0)
    assert (len(first), first[0].number) == (PAGE, 6)
    assert (first[0].client, first[0].round, first[0].detail) == ("a", 5, "seconds 1.5")
    assert [event.number for event in log.after(KEPT + 3)] == [KEPT + 4, KEPT + 5]


@pytest.fixture
def files(run: TinyRun, tmp_path: Path) -> PublishedFiles:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"m" * ((1 << 20) + 7))
    chronicle = Chronicle(model=WrittenModel("ab" * 32, 3, "moments"))
    return PublishedFiles(
        path, chronicle, run.store.blobs.describe(run.method.extractor_sha256), run.store.blobs
    )


def test_the_model_comes_in_pieces_and_a_newer_one_is_not_mixed_in(files: PublishedFiles) -> None:
    first = files.piece(pb.MODEL_PART_MODEL, 0, "")
    assert (len(first.piece), first.size, first.sha256) == (1 << 20, (1 << 20) + 7, "ab" * 32)
    assert len(files.piece(pb.MODEL_PART_MODEL, 1 << 20, first.sha256).piece) == 7
    with pytest.raises(StaleError, match="newer model"):
        files.piece(pb.MODEL_PART_MODEL, 1 << 20, "cd" * 32)


def test_the_extractor_comes_too(run: TinyRun, files: PublishedFiles) -> None:
    got = files.piece(pb.MODEL_PART_EXTRACTOR, 0, "")
    assert got.piece == run.store.blobs.read(run.method.extractor_sha256)


def test_what_is_not_there_is_said(run: TinyRun, files: PublishedFiles) -> None:
    with pytest.raises(InvalidUploadError, match="expected the model"):
        files.piece(9, 0, "")
    with pytest.raises(InvalidUploadError, match="offset"):
        files.piece(pb.MODEL_PART_MODEL, 1 << 40, "")
    extractor = run.store.blobs.describe(run.method.extractor_sha256)
    empty = PublishedFiles(Path("none"), Chronicle(), extractor, run.store.blobs)
    with pytest.raises(NotFoundError, match="no vote"):
        empty.piece(pb.MODEL_PART_MODEL, 0, "")
