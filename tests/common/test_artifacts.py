"""Blobs named by their content: written whole or not at all, verified when read."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from fkd_common import artifacts
from fkd_common.artifacts import Artifact, BlobStore, sha256_hex, write_atomically
from fkd_common.errors import DamagedFileError, InvalidUploadError, NotFoundError
from fkd_common.tensors import encode

BLOB = encode({"w": np.arange(4, dtype=np.float32)})
DIGEST = sha256_hex(BLOB)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


def test_a_blob_comes_back_under_its_digest(store: BlobStore) -> None:
    artifact = store.put(BLOB)
    assert (artifact.sha256, artifact.size, artifact.payload_bytes) == (DIGEST, len(BLOB), 16)
    assert store.has(DIGEST)
    assert store.read(DIGEST) == BLOB


def test_storing_twice_keeps_one_file(store: BlobStore, tmp_path: Path) -> None:
    assert store.put(BLOB) == store.put(BLOB)
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [f"{DIGEST}.safetensors"]


def test_tensors_are_stored_as_the_blob_they_are_encoded_as(store: BlobStore) -> None:
    tensors = {"w": np.arange(4, dtype=np.float32)}
    assert store.put_tensors(tensors) == store.put(encode(tensors))
    assert store.read(DIGEST) == BLOB


def test_a_blob_of_known_digest_is_not_read_to_be_stored(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "sha256_hex", lambda data: pytest.fail("digested again"))
        assert store.put(BLOB, DIGEST).sha256 == DIGEST
        assert store.tensors(DIGEST)["w"].tolist() == [0, 1, 2, 3]
    assert store.read(DIGEST) == BLOB


def test_a_file_is_stored_by_a_second_name(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "spooled"
    source.write_bytes(BLOB)
    assert store.link(source, DIGEST) == store.link(source, DIGEST) == store.put(BLOB)
    assert store.path(DIGEST).samefile(source)
    source.unlink()
    assert store.read(DIGEST) == BLOB


@pytest.mark.parametrize("number", artifacts.NO_LINKS)
def test_where_files_have_one_name_a_copy_is_stored(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: Path, path: Path) -> None:
        raise OSError(number, "no second names here")

    source = tmp_path / "spooled"
    source.write_bytes(BLOB)
    monkeypatch.setattr(artifacts, "link_durably", refuse)
    assert store.link(source, DIGEST).sha256 == DIGEST
    source.write_bytes(b"")
    assert store.read(DIGEST) == BLOB


def test_a_disk_that_refuses_a_second_name_refuses_the_blob(
    store: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: Path, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    source = tmp_path / "spooled"
    source.write_bytes(BLOB)
    monkeypatch.setattr(artifacts, "link_durably", full)
    with pytest.raises(OSError, match="No space left"):
        store.link(source, DIGEST)
    assert not store.has(DIGEST)


@pytest.mark.scenario(29)
def test_damage_of_a_linked_file_is_noticed(store: BlobStore, tmp_path: Path) -> None:
    """Scenario 29."""
    source = tmp_path / "spooled"
    source.write_bytes(BLOB)
    store.link(source, DIGEST)
    source.write_bytes(BLOB[:-1] + b"\xff")
    with pytest.raises(DamagedFileError, match="does not match its name"):
        store.tensors(DIGEST)


def test_a_blobs_tensors_are_the_callers_to_change(store: BlobStore) -> None:
    store.put(BLOB)
    store.tensors(DIGEST)["w"][:] = 9.0
    assert store.tensors(DIGEST)["w"].tolist() == [0, 1, 2, 3]


def test_chunks_put_together_are_the_blob(store: BlobStore) -> None:
    store.put(BLOB)
    assert b"".join(store.read_chunk(DIGEST, at, 7) for at in range(0, len(BLOB), 7)) == BLOB


@pytest.mark.scenario(29)
def test_a_damaged_file_is_noticed(store: BlobStore) -> None:
    """Scenario 29."""
    store.put(BLOB)
    store.path(DIGEST).write_bytes(BLOB[:-1] + b"\xff")
    for look in (store.read, store.tensors, store.check):
        with pytest.raises(DamagedFileError, match="does not match its name"):
            look(DIGEST)


@pytest.mark.scenario(29)
def test_damage_is_noticed_whenever_it_comes_and_in_another_process(store: BlobStore, tmp_path: Path) -> None:
    """Scenario 29: systems count a file's time in ticks, of which a write and the next one may share one."""
    for _ in range(20):
        store.put(BLOB)
        written = store.path(DIGEST).stat().st_mtime_ns
        store.path(DIGEST).write_bytes(BLOB[:-1] + b"\xff")
        assert store.path(DIGEST).stat().st_mtime_ns > written
        for found in (store, BlobStore(tmp_path / "blobs")):
            with pytest.raises(DamagedFileError, match="is damaged"):
                found.tensors(DIGEST)
        store.remove(DIGEST)


def test_an_unknown_blob_is_not_found(store: BlobStore) -> None:
    for question in (store.describe, lambda sha256: store.read_chunk(sha256, 0, 1)):
        with pytest.raises(NotFoundError, match=DIGEST):
            question(DIGEST)
    for question in (store.read, store.tensors, store.check):
        with pytest.raises(DamagedFileError, match=f"{DIGEST}.* is missing"):
            question(DIGEST)


def test_a_removed_blob_is_forgotten(store: BlobStore) -> None:
    store.put(BLOB)
    store.remove(DIGEST)
    assert not store.has(DIGEST)
    with pytest.raises(NotFoundError):
        store.describe(DIGEST)
    store.remove(DIGEST)


def test_a_new_store_finds_what_an_earlier_one_left(store: BlobStore, tmp_path: Path) -> None:
    artifact = store.put(BLOB)
    assert BlobStore(tmp_path / "blobs").describe(DIGEST) == artifact


def test_adopting_a_file_copies_it(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "extractor.safetensors"
    source.write_bytes(BLOB)
    artifact = store.adopt(source)
    source.unlink()
    assert artifact.sha256 == DIGEST
    assert store.read(DIGEST) == BLOB
    assert len(list((tmp_path / "blobs").iterdir())) == 1


def test_adopting_something_else_is_refused(store: BlobStore, tmp_path: Path) -> None:
    source = tmp_path / "notes.txt"
    source.write_bytes(b"no tensors here")
    with pytest.raises(InvalidUploadError):
        store.adopt(source)


@pytest.mark.scenario(2)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    """Scenario 2."""
    path = tmp_path / "model"
    path.mkdir()
    (path / "inside").write_text("old")
    with pytest.raises(OSError, match="model"):
        write_atomically(path, b"new")  # a folder cannot be replaced by a file
    assert [item.name for item in tmp_path.iterdir()] == ["model"]
    assert (path / "inside").read_text() == "old"


def test_a_write_replaces_the_old_content(tmp_path: Path) -> None:
    for content in (b"old, and longer", b"new"):
        write_atomically(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1


def test_payload_of_a_range_counts_tensor_bytes_only() -> None:
    artifact = Artifact("00", size=100, payload_offset=40)
    assert artifact.payload_bytes == 60
    ranges = {(0, 40): 0, (0, 41): 1, (30, 20): 10, (40, 60): 60, (90, 50): 10, (100, 10): 0, (0, 100): 60}
    assert {chunk: artifact.payload_in(*chunk) for chunk in ranges} == ranges
    for step in (1, 7, 33):
        assert sum(artifact.payload_in(at, step) for at in range(0, 100, step)) == 60


def test_a_blob_found_whole_is_read_through_again_once_its_file_has_changed(store: BlobStore) -> None:
    sha256 = store.put(BLOB).sha256
    store.check(sha256)
    store.check(sha256)
    store.path(sha256).write_bytes(BLOB[:-1] + b"\xff")
    with pytest.raises(DamagedFileError, match="is damaged"):
        store.check(sha256)
