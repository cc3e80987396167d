"""A shard folder comes back as written or is refused; `--data` finds and orders what clients have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fkd_common.errors import DataError
from fkd_shards.arrays import check_still_whole
from fkd_shards.shard import content_sha256, open_data, read_shard, write_shard

from .published import distinct_images, labels_of, png, write_class_folder, write_npz

CLASSES = ("bird", "cat", "dog")


def write(folder: Path, labels: np.ndarray | None, classes: tuple[str, ...] = CLASSES) -> Path:
    write_shard(folder, distinct_images(6), labels, classes=classes, source="made by hand")
    return folder


def opened(spec: Path | str, classes: tuple[str, ...] = CLASSES, max_bad: float = 0.01) -> object:
    return open_data(str(spec), classes=classes, image_size=4, max_bad=max_bad)


def test_shard_comes_back_as_written(tmp_path: Path) -> None:
    shard = read_shard(write(tmp_path / "shard0", labels_of(6, 3)), verify=True)
    assert shard.name == "shard0"
    assert shard.num_samples == 6
    assert np.array_equal(shard.images, distinct_images(6))
    assert isinstance(shard.images, np.memmap)
    assert shard.labels is not None
    assert shard.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert shard.class_counts(3).tolist() == [2, 2, 2]
    assert shard.sha256 == content_sha256(distinct_images(6), labels_of(6, 3))


def test_anchors_have_no_labels_file_and_cannot_be_trained_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "anchors", None)
    assert not (folder / "labels.npy").exists()
    assert read_shard(folder, verify=True).labels is None
    with pytest.raises(DataError, match=r"no labels\.npy"):
        opened(folder)


def test_changed_bytes_are_found_when_asked(tmp_path: Path) -> None:
    folder = write(tmp_path / "shard0", labels_of(6, 3))
    content = bytearray((folder / "images.npy").read_bytes())
    content[-1] ^= 1
    (folder / "images.npy").write_bytes(content)
    read_shard(folder)
    with pytest.raises(DataError, match="is damaged"):
        read_shard(folder, verify=True)


@pytest.mark.scenario(40)
def test_truncated_missing_and_misfit_files_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "shard0", labels_of(6, 3))
    whole = (folder / "images.npy").read_bytes()
    (folder / "images.npy").write_bytes(whole[:-10])
    with pytest.raises(DataError, match=r"images\.npy cannot be read"):
        read_shard(folder)
    (folder / "images.npy").unlink()
    with pytest.raises(DataError, match=r"images\.npy cannot be read"):
        read_shard(folder)
    (folder / "images.npy").write_bytes(whole.replace(b"'|u1', ", b"'|u\xc1','"))
    with pytest.raises(DataError, match=r"images\.npy cannot be read"):
        read_shard(folder)
    np.save(folder / "images.npy", distinct_images(5))
    with pytest.raises(DataError, match=r"shape \(6, 4, 4, 3\) expected"):
        read_shard(folder)
    np.save(folder / "images.npy", distinct_images(6).astype(np.float32))
    with pytest.raises(DataError, match="uint8 images"):
        read_shard(folder)
    (folder / "shard.json").write_text("{}")
    with pytest.raises(DataError, match="name: Field required"):
        read_shard(folder)


@pytest.mark.scenario(40)
def test_a_shard_cut_short_while_it_is_open_is_refused_not_fatal(tmp_path: Path) -> None:
    """Scenario 40: reading mapped pages beyond a file's new end would kill the process with SIGBUS."""
    folder = write(tmp_path / "shard0", labels_of(6, 3))
    images = opened(folder).images
    check_still_whole(images)
    os.truncate(folder / "images.npy", (folder / "images.npy").stat().st_size - 1)
    with pytest.raises(DataError, match=r"images\.npy was cut short"):
        check_still_whole(images)
    (folder / "images.npy").unlink()
    with pytest.raises(DataError, match=r"images\.npy was cut short"):
        check_still_whole(images)
    check_still_whole(np.array(images[:2]))  # in memory: nothing can happen to it


@pytest.mark.scenario(39)
def test_label_out_of_range_in_a_shard_names_its_row(tmp_path: Path) -> None:
    """Scenario 39."""
    folder = write(tmp_path / "shard0", labels_of(6, 3))
    np.save(folder / "labels.npy", np.array([0, 1, 2, 3, 0, 0]))
    with pytest.raises(DataError, match=r"labels in 0\.\.2 expected, got row 3: 3"):
        opened(folder)


@pytest.mark.scenario(19)
def test_pickled_labels_in_a_shard_are_refused(tmp_path: Path) -> None:
    """Scenario 19."""
    folder = write(tmp_path / "shard0", labels_of(6, 3))
    np.save(folder / "labels.npy", np.array([object()] * 6), allow_pickle=True)
    with pytest.raises(DataError, match=r"labels\.npy cannot be read"):
        read_shard(folder)


@pytest.mark.scenario(38)
def test_shard_without_samples_is_refused(tmp_path: Path) -> None:
    """Scenario 38: 0 samples."""
    folder = tmp_path / "shard0"
    write_shard(folder, distinct_images(0), labels_of(0, 3), classes=CLASSES, source="")
    with pytest.raises(DataError, match="has no samples"):
        opened(folder)


@pytest.mark.scenario(37, 38)
def test_shard_with_one_sample_or_one_class_is_fine(tmp_path: Path) -> None:
    """Scenarios 37 and 38."""
    write_shard(tmp_path / "one", distinct_images(1), np.array([2]), classes=CLASSES, source="")
    assert open_data(str(tmp_path / "one"), classes=CLASSES, image_size=4).class_counts(3).tolist() == [
        0,
        0,
        1,
    ]


@pytest.mark.scenario(39)
def test_shard_with_fewer_classes_is_mapped_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "shard0", np.array([0, 0, 1, 1, 1, 0]), classes=("dog", "bird"))
    shard = open_data(str(folder), classes=CLASSES, image_size=4)
    assert shard.classes == CLASSES
    assert shard.labels is not None
    assert shard.labels.tolist() == [2, 2, 0, 0, 0, 2]
    assert shard.sha256 == content_sha256(shard.images, shard.labels)


@pytest.mark.scenario(39)
def test_unknown_class_in_a_shard_lists_both_sides(tmp_path: Path) -> None:
    """Scenario 39."""
    folder = write(tmp_path / "shard0", labels_of(6, 2), classes=("cow", "dog"))
    with pytest.raises(DataError, match=r"unknown class 'cow'; the data has cow, dog.*are bird, cat, dog"):
        opened(folder)


@pytest.mark.scenario(39)
def test_unknown_class_folder_lists_the_known_classes(tmp_path: Path) -> None:
    """Scenario 39."""
    write_class_folder(tmp_path / "photos", {"cat": 1, "cow": 1})
    with pytest.raises(DataError, match=r"unknown class 'cow'.*known classes are bird, cat, dog"):
        opened(tmp_path / "photos")


def test_class_folder_is_decoded_resized_and_ordered(tmp_path: Path) -> None:
    write_class_folder(tmp_path / "photos", {"dog": 2, "bird": 1}, size=(9, 12))
    shard = open_data(str(tmp_path / "photos"), classes=CLASSES, image_size=6)
    assert shard.images.shape == (3, 6, 6, 3)
    assert shard.labels is not None
    assert shard.labels.tolist() == [0, 2, 2]


def test_npz_labels_without_names_are_indices_into_the_classes(tmp_path: Path) -> None:
    shard = open_data(str(write_npz(tmp_path / "a.npz", 6, 3)), classes=CLASSES, image_size=4)
    assert shard.classes == CLASSES
    assert shard.class_counts(3).tolist() == [2, 2, 2]
    with pytest.raises(DataError, match=r"labels in 0\.\.1 expected, got row 4: 2, row 5: 2"):
        opened(tmp_path / "a.npz", classes=("bird", "cat"))


def test_names_are_found_in_fkd_data_and_then_in_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FKD_DATA", raising=False)
    (tmp_path / "shards").mkdir()
    write(tmp_path / "shards" / "shard3", labels_of(6, 3))
    assert open_data("shard3", classes=CLASSES, image_size=4).num_samples == 6
    write_shard(tmp_path / "shard3", distinct_images(1), np.array([0]), classes=CLASSES, source="")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "shard3").rename(tmp_path / "elsewhere" / "shard3")
    monkeypatch.setenv("FKD_DATA", "elsewhere")
    assert open_data("shard3", classes=CLASSES, image_size=4).num_samples == 1


@pytest.mark.scenario(38)
def test_missing_data_says_where_it_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 38: nothing to train on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FKD_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"no data 'shard7': looked for .*/shard7, .*/shards/shard7 \(\$FKD_DATA is not"
    ):
        opened("shard7")


@pytest.mark.scenario(38)
def test_empty_folder_and_folder_of_shards_are_explained(tmp_path: Path) -> None:
    """Scenario 38: empty data."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images found"):
        opened(tmp_path / "empty")
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="holds several shards: name one of them"):
        opened(tmp_path / "many")


@pytest.mark.scenario(40)
def test_bad_images_are_skipped_and_reported(tmp_path: Path) -> None:
    """Scenario 40."""
    write_class_folder(tmp_path / "photos", {"cat": 3})
    (tmp_path / "photos" / "cat" / "broken.png").write_bytes(png(distinct_images(1)[0])[:40])
    with pytest.raises(DataError, match=r"1 of 4 images cannot be used.*cat/broken\.png"):
        opened(tmp_path / "photos")
    shard = open_data(str(tmp_path / "photos"), classes=CLASSES, image_size=4, max_bad=0.25)
    assert shard.num_samples == 3
    assert [image.name for image in shard.bad] == ["cat/broken.png"]


@pytest.mark.scenario(39)
def test_a_mistyped_class_name_is_told_what_it_may_have_meant(tmp_path: Path) -> None:
    """Scenario 39."""
    write_class_folder(tmp_path / "photos", {"Cat": 2})
    with pytest.raises(DataError, match="rename 'Cat' to 'cat', or take it out"):
        opened(tmp_path / "photos")


def test_reading_shard_folders_needs_neither_pillow_nor_scikit_learn() -> None:
    code = "import sys, fkd_shards.shard; print(sorted({'PIL', 'sklearn', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
