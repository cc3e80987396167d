"""What cells share is as it was made or made anew, and what killed processes left goes; nobody's work is touched."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from fkd_bench.compare.shared_folder import sweep, whole_folder


def make(folder: Path) -> None:
    (folder / "shard0").mkdir(parents=True)
    (folder / "shard0" / "labels.npy").write_bytes(b"\x00" * 100)
    (folder / "manifest.json").write_text('{"classes": ["a"]}')


def test_a_whole_folder_is_made_once(tmp_path: Path) -> None:
    assert whole_folder(tmp_path / "shards", make) == []
    assert whole_folder(tmp_path / "shards", lambda _: pytest.fail("it is there")) == []


@pytest.mark.parametrize("name", ["shard0/labels.npy", "manifest.json", "digests.json"])
@pytest.mark.parametrize("how", ["one bit", "half of it", "nothing of it"])
def test_whatever_is_damaged_is_named_and_all_made_anew(tmp_path: Path, name: str, how: str) -> None:
    folder = tmp_path / "shards"
    whole_folder(folder, make)
    file = folder / name
    held = file.read_bytes()
    file.write_bytes(
        {"one bit": bytes([held[0] ^ 1]) + held[1:], "half of it": held[: len(held) // 2]}.get(how, b"")
    )
    assert whole_folder(folder, make) == [file]
    assert file.read_bytes() == held
    assert whole_folder(folder, make) == []


def test_a_lost_file_is_damage_and_a_folder_of_an_earlier_version_none(tmp_path: Path) -> None:
    folder = tmp_path / "shards"
    whole_folder(folder, make)
    (folder / "manifest.json").unlink()
    assert whole_folder(folder, make) == [folder / "manifest.json"]
    (folder / "digests.json").unlink()
    assert whole_folder(folder, make) == []
    assert (folder / "digests.json").exists()


def test_what_killed_processes_left_goes_and_what_is_at_work_stays(tmp_path: Path) -> None:
    division = tmp_path / "data" / "d"
    whole_folder(division / "shards", make)
    for place in (
        "cells/dead/run",
        "cells/alive/run",
        "prepared.making",
        ".shards.making.x.new",
        "cache/embeddings",
    ):
        (division / place).mkdir(parents=True)
    (division / "cells" / "dead" / "shards").symlink_to(division / "shards")
    (tmp_path / "bank").mkdir()
    kept = [division / "cache" / "embeddings" / "a.npy", tmp_path / "bank" / "b.npy"]
    half = [division / "cache" / "embeddings" / ".writing-x", tmp_path / "bank" / ".writing-y"]
    for file in (*kept, *half):
        file.touch()
    locks = [division.with_suffix(".lock"), tmp_path / "bank" / "b.lock"]
    for lock in (*locks, *(division / "cells" / f"{name}.lock" for name in ("dead", "alive"))):
        lock.touch()

    def there(*paths: Path) -> list[bool]:
        return [os.path.lexists(path) for path in paths]

    unfinished = [division / "prepared.making", division / ".shards.making.x.new", *half]
    with (division / "cells" / "alive.lock").open() as alive, locks[1].open() as bank:
        fcntl.flock(alive, fcntl.LOCK_EX)
        fcntl.flock(bank, fcntl.LOCK_EX)
        sweep(tmp_path)
        assert there(division / "cells" / "dead", division / "cells" / "alive") == [False, True]
        assert there(*unfinished) == [True] * 4
    sweep(tmp_path)
    assert there(division / "cells" / "alive", *unfinished) == [False] * 5
    assert there(*kept) == [True] * 2
    assert whole_folder(division / "shards", lambda _: pytest.fail("it is there")) == []
