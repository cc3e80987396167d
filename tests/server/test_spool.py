"""Chunks become an upload: in order, resumable, verified, under names no client chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.artifacts import sha256_hex
from fkd_common.errors import CorruptTransferError, InvalidUploadError, TooLargeError
from fkd_server.spool import UploadSpool, chunk_budget

BLOB = b"0123456789"
DIGEST = sha256_hex(BLOB)


@pytest.fixture
def spool(tmp_path: Path) -> UploadSpool:
    return UploadSpool(tmp_path)


def test_chunks_in_order_make_the_upload(spool: UploadSpool) -> None:
    assert [spool.put("a", DIGEST, 10, at, BLOB[at : at + 4]) for at in (0, 4, 8)] == [4, 8, 10]
    assert spool.read("a", DIGEST, 10) == BLOB


@pytest.mark.scenario(4)
def test_an_interrupted_upload_resumes_where_it_stopped(spool: UploadSpool, tmp_path: Path) -> None:
    """Scenario 4."""
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    restarted = UploadSpool(tmp_path)
    assert restarted.put("a", DIGEST, 10, 0, b"") == 4
    restarted.put("a", DIGEST, 10, 4, BLOB[4:])
    assert restarted.read("a", DIGEST, 10) == BLOB


@pytest.mark.scenario(22)
def test_a_duplicate_chunk_changes_nothing(spool: UploadSpool) -> None:
    """Scenario 22."""
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    assert spool.put("a", DIGEST, 10, 0, BLOB[:4]) == 4
    assert spool.put("a", DIGEST, 10, 2, BLOB[2:6]) == 4
    spool.put("a", DIGEST, 10, 4, BLOB[4:])
    assert spool.read("a", DIGEST, 10) == BLOB


@pytest.mark.scenario(22)
def test_a_premature_chunk_changes_nothing(spool: UploadSpool) -> None:
    """Scenario 22."""
    assert spool.put("a", DIGEST, 10, 4, BLOB[4:]) == 0
    spool.put("a", DIGEST, 10, 0, BLOB[:2])
    assert spool.put("a", DIGEST, 10, 8, BLOB[8:]) == 2
    assert spool.held("a", DIGEST) == 2


@pytest.mark.scenario(22)
@pytest.mark.parametrize("offset, data", [(0, BLOB + b"!"), (8, b"abc"), (11, b""), (2**63, b"x")])
def test_a_chunk_past_the_declared_size_is_refused(spool: UploadSpool, offset: int, data: bytes) -> None:
    """Scenario 22."""
    with pytest.raises(TooLargeError, match="exceeds the declared size 10"):
        spool.put("a", DIGEST, 10, offset, data)
    assert spool.held("a", DIGEST) == 0


def test_missing_bytes_are_counted_and_kept(spool: UploadSpool) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    with pytest.raises(InvalidUploadError, match="4 of 10 bytes") as refused:
        spool.read("a", DIGEST, 10)
    assert refused.value.reason == "INCOMPLETE_UPLOAD"
    assert spool.held("a", DIGEST) == 4


@pytest.mark.scenario(21)
def test_a_damaged_upload_is_thrown_away(spool: UploadSpool, tmp_path: Path) -> None:
    """Scenario 21."""
    spool.put("a", DIGEST, 10, 0, b"01234!6789")
    with pytest.raises(CorruptTransferError, match="send it again"):
        spool.read("a", DIGEST, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_complete_upload_stays_until_it_is_discarded(spool: UploadSpool, tmp_path: Path) -> None:
    """A disk that is full when the upload is to be stored does not cost the client a second transfer."""
    spool.put("a", DIGEST, 10, 0, BLOB)
    assert spool.read("a", DIGEST, 10) == spool.read("a", DIGEST, 10) == BLOB
    spool.discard("a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidUploadError, match="0 of 10 bytes"):
        spool.read("a", DIGEST, 10)


@pytest.mark.scenario(21)
def test_the_digest_grows_with_the_upload(
    spool: UploadSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 21: a lie is found without reading the file again, and so is the truth."""
    monkeypatch.setattr("fkd_server.spool.sha256_hex", lambda blob: pytest.fail("digested again"))
    for at in (0, 4, 4, 8):  # one of them twice
        spool.put("a", DIGEST, 10, at, BLOB[at : at + 4])
    assert spool.read("a", DIGEST, 10) == BLOB
    spool.put("b", DIGEST, 10, 0, b"01234!6789")
    with pytest.raises(CorruptTransferError, match="send it again"):
        spool.read("b", DIGEST, 10)
    assert spool.held("b", DIGEST) == 0


@pytest.mark.scenario(21)
@pytest.mark.parametrize("first", [BLOB[:4], b"01!3"])
def test_what_another_process_wrote_is_read_again(spool: UploadSpool, tmp_path: Path, first: bytes) -> None:
    """Scenario 21: after a restart the digest covers less than the file."""
    spool.put("a", DIGEST, 10, 0, first)
    restarted = UploadSpool(tmp_path)
    restarted.put("a", DIGEST, 10, 4, BLOB[4:])
    if first == BLOB[:4]:
        assert restarted.read("a", DIGEST, 10) == BLOB
    else:
        with pytest.raises(CorruptTransferError, match="send it again"):
            restarted.read("a", DIGEST, 10)


def test_what_a_failed_write_left_is_not_trusted(spool: UploadSpool, tmp_path: Path) -> None:
    """A disk that took half a chunk: the rest comes again, and the whole is read."""
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    with spool.path("a", DIGEST).open("ab") as file:
        file.write(BLOB[4:6])
    spool.put("a", DIGEST, 10, 6, BLOB[6:])
    assert spool.read("a", DIGEST, 10) == BLOB


def test_nothing_is_added_to_an_upload_that_is_stored(spool: UploadSpool, tmp_path: Path) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB)
    (tmp_path / "stored").hardlink_to(spool.path("a", DIGEST))
    assert spool.put("a", DIGEST, 10, 0, b"") == 10, "complete; a client that asks goes on to submit"
    assert spool.put("a", DIGEST, 12, 10, b"!!") == 0
    assert (tmp_path / "stored").read_bytes() == BLOB


def test_a_client_has_one_partial_upload_at_a_time(spool: UploadSpool, tmp_path: Path) -> None:
    for blob in (b"first", b"second", b"third"):
        spool.put("a", sha256_hex(blob), 100, 0, blob)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"third"]


def test_what_is_read_is_the_callers_to_change(spool: UploadSpool) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB)
    spool.read("a", DIGEST, 10)[0] = 0
    assert spool.read("a", DIGEST, 10) == BLOB


def test_clients_do_not_touch_each_others_uploads(spool: UploadSpool) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB)
    spool.put("b", DIGEST, 10, 0, BLOB[:3])
    spool.discard("b")
    assert (spool.held("a", DIGEST), spool.held("b", DIGEST)) == (10, 0)


@pytest.mark.scenario(20)
@pytest.mark.parametrize("client", ["../../etc/passwd", "a/b", "*", "a\x00b", "x" * 1000])
def test_file_names_never_derive_from_client_text(tmp_path: Path, client: str) -> None:
    """Scenario 20."""
    spool = UploadSpool(tmp_path / "spool")
    spool.put(client, DIGEST, 10, 0, BLOB[:4])
    (name,) = [path.name for path in (tmp_path / "spool").iterdir()]
    assert set(name.removesuffix(f"-{DIGEST}.part")) <= set("0123456789abcdef")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.scenario(22)
def test_an_upload_in_a_million_tiny_chunks_is_refused_after_a_few_hundred(spool: UploadSpool) -> None:
    """Scenario 22: 10^6 tiny chunks."""
    size = 1_000_000
    budget = chunk_budget(size)
    assert budget == 500
    for at in range(budget):
        assert spool.put("a", DIGEST, size, at, b"x") == at + 1
    with pytest.raises(TooLargeError, match="may come in 500 chunks") as refused:
        spool.put("a", DIGEST, size, budget, b"x")
    assert refused.value.reason == "TOO_MANY_CHUNKS"
    assert spool.put("b", DIGEST, size, 0, b"x") == 1


@pytest.mark.scenario(22)
@pytest.mark.parametrize("offset", [0, 7])
def test_chunks_that_change_nothing_count_too(spool: UploadSpool, offset: int) -> None:
    """Scenario 22: the same chunk over and over, or one that is always too early."""
    with pytest.raises(TooLargeError, match="send larger chunks"):
        for _ in range(chunk_budget(10) + 1):
            spool.put("a", DIGEST, 10, offset, b"x")


def test_the_largest_student_fits_its_budget_in_small_chunks() -> None:
    """A ResNet18 of 44.8 MB in chunks of 16 KiB, each sent twice."""
    assert chunk_budget(44_800_000) > 2 * 44_800_000 / 16_384


@pytest.mark.scenario(4)
def test_an_upload_that_stops_growing_is_dropped_after_its_time(tmp_path: Path) -> None:
    """Scenario 4: the client was killed and never came back."""
    spool = UploadSpool(tmp_path, ttl_s=60.0)
    spool.put("dead", DIGEST, 10, 0, BLOB[:4])
    spool.put("slow", DIGEST, 10, 0, BLOB[:4])
    assert spool.sweep(1000.0) == 0
    spool.put("slow", DIGEST, 10, 4, BLOB[4:6])
    assert spool.sweep(1050.0) == 0
    assert spool.sweep(1061.0) == 1
    assert (spool.held("dead", DIGEST), spool.held("slow", DIGEST)) == (0, 6)
    assert spool.sweep(1120.0) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.scenario(4)
def test_after_a_restart_an_upload_has_its_whole_time_again(tmp_path: Path) -> None:
    """Scenario 4: a monotonic clock says nothing about the time before the restart."""
    UploadSpool(tmp_path, ttl_s=60.0).put("a", DIGEST, 10, 0, BLOB[:4])
    restarted = UploadSpool(tmp_path, ttl_s=60.0)
    assert restarted.sweep(5.0) == 0
    assert restarted.sweep(64.0) == 0
    assert restarted.sweep(71.0) == 1


def test_when_a_phase_closes_nothing_partial_is_left(spool: UploadSpool, tmp_path: Path) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    spool.put("b", DIGEST, 10, 0, BLOB[:3])
    spool.clear()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "left_behind",
    [BLOB[:3] + b"\0\0\0", b"", b"garbage that is longer than the upload", BLOB + b"\0", b"9876543210"],
    ids=["zeros at its end", "empty", "garbage", "too long", "wrong bytes"],
)
def test_what_a_crash_leaves_of_an_upload_is_noticed_and_sent_again(
    tmp_path: Path, left_behind: bytes
) -> None:
    """Chunks are not synced: after a loss of power a file may be anything; the digest decides."""
    UploadSpool(tmp_path).put("a", DIGEST, 10, 0, BLOB[:6])
    (part,) = tmp_path.iterdir()
    part.write_bytes(left_behind)
    spool = UploadSpool(tmp_path)

    def send() -> bytes:
        held = 0
        while held < 10:
            held = spool.put("a", DIGEST, 10, held, BLOB[held : held + 4])
        return spool.read("a", DIGEST, 10)

    try:
        assert send() == BLOB
    except CorruptTransferError:
        assert send() == BLOB
