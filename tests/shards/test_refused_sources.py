"""Sources that are damaged, hostile or mislabelled are refused with a reason, and nothing in them runs."""

from __future__ import annotations

import os
import pickle
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fkd_common.errors import DataError
from fkd_shards.sources import open_source
from fkd_shards.sources.inert_pickle import read_inert_pickle

from .published import (
    distinct_images,
    labels_of,
    write_cifar10,
    write_cifar10_binary,
    write_class_folder,
)


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.scenario(19)
def test_malicious_pickle_is_refused_and_never_runs(tmp_path: Path) -> None:
    """Scenario 19: a pickle that would run a command."""
    batch = write_cifar10(tmp_path) / "cifar-10-batches-py" / "data_batch_1"
    batch.write_bytes(pickle.dumps({"data": _Touch(tmp_path / "ran"), "labels": []}))
    with pytest.raises(DataError, match="system, which no published file does"):
        open_source(f"cifar10:{tmp_path}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.scenario(19)
@pytest.mark.parametrize(
    "pickled",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",  # a function by name
        b"c_codecs\nencode\n}S'x'\nK\x01sb.",  # an attribute set on an allowed name
        b"\x80\x02cnumpy\nndarray\n)\x81}S'array'\nK\x01sb.",
        b"\x80\x05\x8e" + b"\xff" * 7 + b"\x7f.",  # bytes longer than memory
        b"\x80\x02]q\x00.",  # a list
        b"",
        b"not a pickle",
    ],
)
def test_damaged_or_hostile_pickles_are_refused(tmp_path: Path, pickled: bytes) -> None:
    """Scenario 19."""
    (tmp_path / "batch").write_bytes(pickled)
    with pytest.raises(DataError, match="refused"):
        read_inert_pickle(tmp_path / "batch")


@pytest.mark.scenario(19, 20)
@pytest.mark.parametrize("opcode", [pickle.BYTEARRAY8, pickle.BINBYTES8, pickle.BINUNICODE8, pickle.FRAME])
def test_a_pickle_that_promises_more_than_it_holds_allocates_nothing(tmp_path: Path, opcode: bytes) -> None:
    """Scenarios 19 and 20: 2 GiB declared in a file of 16 bytes."""
    (tmp_path / "batch").write_bytes(b"\x80\x05" + opcode + (2**31).to_bytes(8, "little") + b"short.")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="refused"):
        read_inert_pickle(tmp_path / "batch")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.scenario(19)
def test_npz_with_pickled_objects_is_refused(tmp_path: Path) -> None:
    """Scenario 19."""
    np.savez(tmp_path / "o.npz", x=distinct_images(1), y=np.array([{"a": 1}], dtype=object))
    with pytest.raises(DataError, match="holds Python objects"):
        open_source(str(tmp_path / "o.npz"))


@pytest.mark.scenario(20)
def test_npz_whose_header_promises_more_than_it_holds_allocates_nothing(tmp_path: Path) -> None:
    """Scenario 20, for files: 12 TB declared in a file of a few hundred bytes."""
    header = (
        b"\x93NUMPY\x01\x00\x76\x00"
        + b"{'descr': '|u1', 'fortran_order': False, 'shape': (999999999, 64, 64, 3), }"
    )
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("x.npy", header.ljust(127) + b"\n")
    with pytest.raises(DataError, match="at most"):
        open_source(str(tmp_path / "lie.npz"))
    with zipfile.ZipFile(tmp_path / "lie.npz", "w") as archive:
        archive.writestr("x.npy", header.replace(b"(999999999,", b"(9,").ljust(127) + b"\n")
    with pytest.raises(DataError, match=r"declares shape \(9, 64, 64, 3\)"):
        open_source(str(tmp_path / "lie.npz"))


@pytest.mark.scenario(40)
def test_damaged_npz_headers_are_data_errors(tmp_path: Path) -> None:
    """numpy's parser answers a broken header with TokenError, which is neither OSError nor ValueError."""
    header = b"\x93NUMPY\x01\x00\x76\x00{'descr': '|u\xc1','fortran_order': False, 'shape': (6, 4, 4, 3), }"
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("x.npy", header.ljust(127) + b"\n")
    with pytest.raises(DataError, match="array 'x' cannot be read"):
        open_source(str(tmp_path / "d.npz"))
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 not a zip file")
    with pytest.raises(DataError, match=r"not a readable \.npz file"):
        open_source(str(tmp_path / "d.npz"))


@pytest.mark.scenario(40)
@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), "uint8 images"),
        (np.zeros((2, 3, 8, 8), np.uint8), "n×H×W×3 expected, got 2×3×8×8"),
        (np.zeros((2, 4), np.uint8), "expected, got 2×4"),
    ],
)
def test_npz_images_of_another_kind_are_refused(tmp_path: Path, x: np.ndarray, expected: str) -> None:
    np.savez(tmp_path / "x.npz", x=x, y=labels_of(2, 2))
    with pytest.raises(DataError, match=expected):
        open_source(str(tmp_path / "x.npz"))


@pytest.mark.scenario(39)
@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([0, 1, -1, 5]), "row 2: -1, row 3: 5"),
        (np.array([0.0, 1.5, np.nan, 1.0]), "row 1: 1.5, row 2: nan"),
        (np.array([0.0, np.inf, 1.0, 1.0]), "row 1: inf"),
        (np.array(["a", "b", "a", "b"]), "integer labels expected"),
        (np.array([0, 2**63, 1, 1], np.uint64), "row 1: 9223372036854775808"),
        (np.array([0, 1]), "one label for each of 4 images"),
        (np.eye(4, dtype=np.int64), "one label for each of 4 images"),
    ],
)
def test_unusable_labels_are_refused_and_their_rows_named(
    tmp_path: Path, labels: np.ndarray, expected: str
) -> None:
    """Scenario 39: labels outside 0..C-1, non-integer or NaN."""
    np.savez(tmp_path / "y.npz", x=distinct_images(4), y=labels, classes=np.array(["a", "b"]))
    with pytest.raises(DataError, match=expected):
        open_source(str(tmp_path / "y.npz"))


@pytest.mark.scenario(39)
def test_cifar_label_out_of_range_names_file_and_row(tmp_path: Path) -> None:
    """Scenario 39."""
    path = write_cifar10_binary(tmp_path) / "cifar-10-batches-bin" / "test_batch.bin"
    content = bytearray(path.read_bytes())
    content[3073] = 10
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"test_batch\.bin.*row 1: 10"):
        open_source(f"cifar10:{tmp_path}")


@pytest.mark.scenario(39)
def test_class_folder_known_only_to_the_test_part_is_refused(tmp_path: Path) -> None:
    """Scenario 39: unknown class folder."""
    write_class_folder(tmp_path, {"train/cat": 1, "train/dog": 1, "test/cow": 1})
    with pytest.raises(DataError, match=r"unknown class folder 'cow'.*are cat, dog"):
        open_source(str(tmp_path))


def test_class_names_given_twice_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", x=distinct_images(2), y=labels_of(2, 2), classes=np.array(["a", "a"]))
    with pytest.raises(DataError, match="given twice: a"):
        open_source(str(tmp_path / "c.npz"))


def test_offsets_beyond_the_joined_bytes_are_refused(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "o.npz",
        bytes_train=np.zeros(4, np.uint8),
        offsets_train=np.array([0, 9]),
        y_train=np.array([0]),
    )
    with pytest.raises(DataError, match="offsets_train must rise"):
        open_source(str(tmp_path / "o.npz"))
