"""Chunks become an upload: in order, resumable, verified, under names no client chooses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_common.artifacts import sha256_hex
from fkd_common.errors import CorruptTransferError, InvalidUploadError, TooLargeError
from fkd_server.spool import UploadSpool

BLOB = b"0123456789"
DIGEST = sha256_hex(BLOB)


@pytest.fixture
def spool(tmp_path: Path) -> UploadSpool:
    return UploadSpool(tmp_path)


def test_chunks_in_order_make_the_upload(spool: UploadSpool) -> None:
    assert [spool.put("a", DIGEST, 10, at, BLOB[at : at + 4]) for at in (0, 4, 8)] == [4, 8, 10]
    assert spool.take("a", DIGEST, 10) == BLOB


def test_an_interrupted_upload_resumes_where_it_stopped(spool: UploadSpool, tmp_path: Path) -> None:
    """Scenario 4."""
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    restarted = UploadSpool(tmp_path)
    assert restarted.put("a", DIGEST, 10, 0, b"") == 4
    restarted.put("a", DIGEST, 10, 4, BLOB[4:])
    assert restarted.take("a", DIGEST, 10) == BLOB


def test_a_duplicate_chunk_changes_nothing(spool: UploadSpool) -> None:
    """Scenario 22."""
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    assert spool.put("a", DIGEST, 10, 0, BLOB[:4]) == 4
    assert spool.put("a", DIGEST, 10, 2, BLOB[2:6]) == 4
    spool.put("a", DIGEST, 10, 4, BLOB[4:])
    assert spool.take("a", DIGEST, 10) == BLOB


def test_a_premature_chunk_changes_nothing(spool: UploadSpool) -> None:
    """Scenario 22."""
    assert spool.put("a", DIGEST, 10, 4, BLOB[4:]) == 0
    spool.put("a", DIGEST, 10, 0, BLOB[:2])
    assert spool.put("a", DIGEST, 10, 8, BLOB[8:]) == 2
    assert spool.held("a", DIGEST) == 2


@pytest.mark.parametrize("offset, data", [(0, BLOB + b"!"), (8, b"abc"), (11, b""), (2**63, b"x")])
def test_a_chunk_past_the_declared_size_is_refused(spool: UploadSpool, offset: int, data: bytes) -> None:
    """Scenario 22."""
    with pytest.raises(TooLargeError, match="exceeds the declared size 10"):
        spool.put("a", DIGEST, 10, offset, data)
    assert spool.held("a", DIGEST) == 0


def test_missing_bytes_are_counted_and_kept(spool: UploadSpool) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB[:4])
    with pytest.raises(InvalidUploadError, match="4 of 10 bytes") as refused:
        spool.take("a", DIGEST, 10)
    assert refused.value.reason == "INCOMPLETE_UPLOAD"
    assert spool.held("a", DIGEST) == 4


def test_a_damaged_upload_is_thrown_away(spool: UploadSpool, tmp_path: Path) -> None:
    """Scenario 21."""
    spool.put("a", DIGEST, 10, 0, b"01234!6789")
    with pytest.raises(CorruptTransferError, match="send it again"):
        spool.take("a", DIGEST, 10)
    assert list(tmp_path.iterdir()) == []


def test_a_taken_upload_is_gone(spool: UploadSpool, tmp_path: Path) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB)
    spool.take("a", DIGEST, 10)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidUploadError, match="0 of 10 bytes"):
        spool.take("a", DIGEST, 10)


def test_a_client_has_one_partial_upload_at_a_time(spool: UploadSpool, tmp_path: Path) -> None:
    for blob in (b"first", b"second", b"third"):
        spool.put("a", sha256_hex(blob), 100, 0, blob)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"third"]


def test_clients_do_not_touch_each_others_uploads(spool: UploadSpool) -> None:
    spool.put("a", DIGEST, 10, 0, BLOB)
    spool.put("b", DIGEST, 10, 0, BLOB[:3])
    spool.discard("b")
    assert (spool.held("a", DIGEST), spool.held("b", DIGEST)) == (10, 0)


@pytest.mark.parametrize("client", ["../../etc/passwd", "a/b", "*", "a\x00b", "x" * 1000])
def test_file_names_never_derive_from_client_text(tmp_path: Path, client: str) -> None:
    """Scenario 20."""
    spool = UploadSpool(tmp_path / "spool")
    spool.put(client, DIGEST, 10, 0, BLOB[:4])
    (name,) = [path.name for path in (tmp_path / "spool").iterdir()]
    assert set(name.removesuffix(f"-{DIGEST}.part")) <= set("0123456789abcdef")
    assert len(list(tmp_path.iterdir())) == 1
