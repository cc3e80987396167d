"""Published formats are read as published; what does not fit is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fkd_common.errors import DataError, UsageError
from fkd_shards.source import Source, Split
from fkd_shards.sources import open_source
from fkd_shards.sources.inert_pickle import read_inert_pickle

from .published import (
    distinct_images,
    png,
    write_cifar10,
    write_cifar10_binary,
    write_cifar100,
    write_class_folder,
    write_encoded,
    write_fashion_mnist,
    write_npz,
    write_stl10,
)


def images_of(split: Split | None) -> np.ndarray:
    assert split is not None
    return split.pictures.load(np.arange(len(split.labels)), None).images


def assert_cifar(source: Source, num_classes: int, num_train: int) -> None:
    images = images_of(source.train)
    assert images.shape == (num_train, 32, 32, 3)
    assert images[3, 0, 0].tolist() == images[3, 31, 31].tolist() == [10, 20, 3]
    assert images[3, 2, 5].tolist() == [99, 20, 3]
    assert source.train.labels[3] == 3
    assert source.classes[-1] == f"class {num_classes - 1}"
    assert source.test is not None


def test_digits_are_grey_and_span_the_whole_range() -> None:
    source = open_source("digits")
    images = images_of(source.train)
    assert images.shape == (1797, 8, 8, 1)
    assert (images.min(), images.max()) == (0, 255)
    assert source.test is None


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_cifar10_python_batches_are_read_whatever_protocol_wrote_them(tmp_path: Path, protocol: int) -> None:
    assert_cifar(open_source(f"cifar10:{write_cifar10(tmp_path, protocol)}"), 10, 50)


def test_cifar10_pickled_by_python_2_is_read(tmp_path: Path) -> None:
    """The published files were written by Python 2, whose bytes are text to Python 3."""
    pickled = (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x03\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89U\x03\x01\x80\xfftbs."
    )
    (tmp_path / "batch").write_bytes(pickled)
    data = read_inert_pickle(tmp_path / "batch")["data"]
    assert isinstance(data, np.ndarray)
    assert data.tolist() == [[1, 128, 255]]


def test_cifar10_binary_batches_equal_the_python_ones(tmp_path: Path) -> None:
    assert_cifar(open_source(f"cifar10:{write_cifar10_binary(tmp_path)}"), 10, 50)


def test_cifar100_uses_fine_labels(tmp_path: Path) -> None:
    assert_cifar(open_source(f"cifar100:{write_cifar100(tmp_path)}"), 100, 100)


def test_missing_cifar_batch_is_named(tmp_path: Path) -> None:
    (write_cifar10(tmp_path) / "cifar-10-batches-py" / "data_batch_4").unlink()
    with pytest.raises(DataError, match="data_batch_4 is missing"):
        open_source(f"cifar10:{tmp_path}")


def test_stl10_is_turned_upright_and_counts_labels_from_zero(tmp_path: Path) -> None:
    source = open_source(f"stl10:{write_stl10(tmp_path)}")
    assert images_of(source.train)[0, 7, 5].tolist() == [0, 200, 0]
    assert source.train.labels.tolist() == list(range(10))


@pytest.mark.parametrize("zipped", [False, True])
def test_fashion_mnist_is_read_plain_and_zipped(tmp_path: Path, zipped: bool) -> None:
    source = open_source(f"fashion-mnist:{write_fashion_mnist(tmp_path, zipped)}")
    images = images_of(source.test)
    assert images.shape == (10, 28, 28, 1)
    assert images[4].min() == images[4].max() == 4
    assert source.classes[9] == "Ankle boot"


def test_fashion_mnist_header_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    path = write_fashion_mnist(tmp_path, zipped=False) / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    path.write_bytes(bytes((0, 0, 8, 3)) + np.array([2**32 - 1] * 3, ">u4").tobytes())
    with pytest.raises(DataError, match="at most"):
        open_source(f"fashion-mnist:{tmp_path}")


def test_medmnist_validation_joins_training_and_column_labels_are_accepted(tmp_path: Path) -> None:
    images = distinct_images(9)
    np.savez(
        tmp_path / "path.npz",
        train_images=images[:4],
        train_labels=np.array([[0], [1], [2], [0]]),
        val_images=images[4:6],
        val_labels=np.array([[1], [1]]),
        test_images=images[6:],
        test_labels=np.array([[2], [2], [0]]),
    )
    source = open_source(str(tmp_path / "path.npz"))
    assert np.array_equal(images_of(source.train), images[:6])
    assert source.train.labels.tolist() == [0, 1, 2, 0, 1, 1]
    assert source.test is not None
    assert source.test.labels.tolist() == [2, 2, 0]
    assert source.classes == ("0", "1", "2")


def test_grey_npz_images_get_a_channel_axis(tmp_path: Path) -> None:
    np.savez(tmp_path / "grey.npz", x_train=np.zeros((2, 5, 6), np.uint8), y_train=[0.0, 1.0])
    source = open_source(str(tmp_path / "grey.npz"))
    assert images_of(source.train).shape == (2, 5, 6, 1)
    assert source.train.labels.tolist() == [0, 1]


def test_encoded_npz_is_bit_exact_and_keeps_its_sites(tmp_path: Path) -> None:
    images = distinct_images(3)
    files = [png(images[0]), png(images[1], "WEBP"), png(images[2])]
    source = open_source(str(write_encoded(tmp_path / "e.npz", files, [0, 1, 1], [7, 7, 9])))
    assert np.array_equal(images_of(source.train), images)
    assert source.train.sites is not None
    assert source.train.sites.tolist() == ["7", "7", "9"]
    assert source.classes == ("cat", "dog")


def test_class_folders_are_sorted_and_other_files_ignored(tmp_path: Path) -> None:
    write_class_folder(tmp_path, {"dog": 2, "cat": 1})
    (tmp_path / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    source = open_source(f"folder:{tmp_path}")
    assert source.classes == ("cat", "dog")
    assert source.train.labels.tolist() == [0, 1, 1]
    assert source.train.sites is None


def test_train_and_test_folders_are_the_published_split(tmp_path: Path) -> None:
    source = open_source(str(write_class_folder(tmp_path, {"train/cat": 2, "train/dog": 1, "test/dog": 1})))
    assert source.train.labels.tolist() == [0, 0, 1]
    assert source.test is not None
    assert source.test.labels.tolist() == [1]


def test_site_folders_above_classes_become_sites(tmp_path: Path) -> None:
    source = open_source(str(write_class_folder(tmp_path, {"north/cat": 1, "south/cat": 1, "south/dog": 1})))
    assert source.train.sites is not None
    assert source.train.sites.tolist() == ["north", "south", "south"]
    assert source.train.labels.tolist() == [0, 0, 1]


def test_site_and_class_folders_side_by_side_are_refused(tmp_path: Path) -> None:
    write_class_folder(tmp_path, {"cat": 1, "south/dog": 1})
    with pytest.raises(DataError, match="south/ holds only folders while cat/ holds images"):
        open_source(str(tmp_path))


def test_bare_paths_are_recognised_by_their_layout(tmp_path: Path) -> None:
    assert len(open_source(str(write_cifar10(tmp_path / "a"))).classes) == 10
    assert len(open_source(str(write_cifar100(tmp_path / "b") / "cifar-100-python")).classes) == 100
    assert open_source(str(write_stl10(tmp_path / "c"))).classes[0] == "class0"
    assert open_source(str(write_fashion_mnist(tmp_path / "d", zipped=True))).classes[0] == "T-shirt/top"
    assert open_source(str(write_npz(tmp_path / "e.npz"))).classes == ("0", "1", "2")


def test_unknown_kind_and_missing_path_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="source kind 'imagenet' is unknown: use digits, npz:PATH"):
        open_source("imagenet:/nowhere")
    with pytest.raises(DataError, match="no data at"):
        open_source(f"npz:{tmp_path / 'none.npz'}")
