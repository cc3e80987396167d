"""Labels that are wrong on purpose: which shards, how many labels, and that nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fkd_common.errors import UsageError
from fkd_shards.create import CreateRequest, create
from fkd_shards.json_files import Manifest
from fkd_shards.label_faults import LabelFaults
from fkd_shards.partitions import Partition
from fkd_shards.shard import read_shard

from .published import write_npz


def applied(faults: LabelFaults, labels: list[int], classes: int, *, flipped: bool = False) -> list[int]:
    given = np.array(labels, np.int64)
    wrong = faults.applied(given, classes, np.random.default_rng(0), flipped=flipped)
    assert given.tolist() == labels
    return wrong.tolist()


def made(tmp_path: Path, name: str, faults: LabelFaults) -> tuple[Path, Manifest]:
    source = write_npz(tmp_path / "a.npz", 300)
    request = CreateRequest(
        str(source), 5, Partition.parse("iid"), 3, tmp_path / name, anchors=5, public=10, faults=faults
    )
    return request.out, create(request)


def labels_in(folder: Path) -> np.ndarray:
    labels = read_shard(folder).labels
    assert labels is not None
    return labels


def test_flipped_labels_count_from_the_other_end() -> None:
    assert applied(LabelFaults(0.5), [0, 1, 9], 10, flipped=True) == [9, 8, 0]
    assert applied(LabelFaults(0.5), [0, 1, 9], 10) == [0, 1, 9]


def test_noise_makes_exactly_its_share_of_the_labels_others_and_keeps_them_in_range() -> None:
    labels = [0, 1, 2] * 20
    wrong = applied(LabelFaults(label_noise=0.3), labels, 3)
    assert sum(a != b for a, b in zip(labels, wrong, strict=True)) == 18
    assert set(wrong) == {0, 1, 2}


def test_a_single_class_has_no_other_to_become() -> None:
    assert applied(LabelFaults(label_noise=1.0), [0, 0], 1) == [0, 0]


def test_who_is_flipped_under_a_smaller_share_is_under_a_larger() -> None:
    sets = [LabelFaults(share).flipped_shards(10, np.random.default_rng(1)) for share in (0.0, 0.1, 0.3, 1.0)]
    assert [len(names) for names in sets] == [0, 1, 3, 10]
    assert sets[0] < sets[1] < sets[2] < sets[3]


def test_only_the_flipped_shards_differ_and_the_manifest_names_them(tmp_path: Path) -> None:
    clean, before = made(tmp_path, "clean", LabelFaults())
    faulty, after = made(tmp_path, "faulty", LabelFaults(0.4))
    assert (before.flipped, len(after.flipped)) == ((), 2)
    assert before.partition_sha256 == after.partition_sha256
    for name in (*(f"shard{k}" for k in range(5)), "test", "public"):
        expected = labels_in(clean / name)
        assert np.array_equal(labels_in(faulty / name), 2 - expected if name in after.flipped else expected)
        assert np.array_equal(read_shard(faulty / name).images, read_shard(clean / name).images)


def test_a_manifest_written_before_there_were_faults_is_read(tmp_path: Path) -> None:
    folder, manifest = made(tmp_path, "clean", LabelFaults())
    path = folder / "manifest.json"
    older = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("flipped", "label_noise")}
    path.write_text(json.dumps(older))
    assert Manifest.read(path) == manifest


@pytest.mark.parametrize("faults", [{"flipped_clients": 1.1}, {"label_noise": -0.1}])
def test_a_share_out_of_range_is_one_sentence(faults: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"is a share in 0\.\.1"):
        LabelFaults(**faults)
