"""Headers are written byte for byte as the safetensors library writes them, and read as strictly as it reads them."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from fkd_common.errors import InvalidUploadError
from fkd_common.tensors import MAX_HEADER_BYTES, decode, encode

from .test_tensors import blob_of, entry

DTYPES = ("bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8")
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=6).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def sample(kind: tuple[str, tuple[int, ...]]) -> np.ndarray:
    dtype, shape = kind
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), SHAPES).map(sample), max_size=8),
    st.text(max_size=4),
)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_bytes_are_those_of_the_library(tensors: dict[str, np.ndarray], said: str) -> None:
    metadata = None
    with contextlib.suppress(UnicodeEncodeError):
        said.encode()
        metadata = {"key": said}
    blob = encode(tensors, metadata)
    assert blob == safetensors.numpy.save(tensors, metadata)
    for name, array in decode(blob).items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            tensors[name].dtype,
            tensors[name].shape,
            tensors[name].tobytes(),
        )


@pytest.mark.parametrize("dtype", ["c16", "U3", "M8[s]", "O"])
def test_a_dtype_that_the_format_lacks_is_named(dtype: str) -> None:
    with pytest.raises(ValueError, match=r"tensor 'w' has dtype .*; expected one of uint64"):
        encode({"w": np.zeros(2, dtype=dtype)})


def test_the_name_of_the_metadata_is_no_tensors() -> None:
    with pytest.raises(ValueError, match="__metadata__"):
        encode({"__metadata__": np.zeros(1)})


PIECES = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"0", b"1", b"4", b"8", b"12", b"-1", b"1e1", b"null", b"true", b" ",
    b'"x"', b'"y"', b'"F32"', b'"I64"', b'"F4"', b'"shape"', b'"dtype"', b'"data_offsets"', b'"__metadata__"',
    b'{"a":"b"}', b"99999999999999999999", b'"\\ud800"', b"\\", b"\xff", b"\x00", b"[0,4]", b"[1]", b"[]",
)  # fmt: skip


@pytest.mark.scenario(20, 21)
@given(
    st.lists(
        st.tuples(st.integers(0, 200), st.integers(0, 6), st.sampled_from(PIECES)), min_size=1, max_size=3
    ),
    st.integers(-8, 8),
)
@settings(max_examples=1500, deadline=None, derandomize=True)
def test_what_is_read_the_library_reads_too_and_as_the_same(
    changes: list[tuple[int, int, bytes]], more: int
) -> None:
    """Scenarios 20, 21."""
    header = b'{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[1,3],"data_offsets":[0,12]},'
    header += b'"y":{"dtype":"U8","shape":[4],"data_offsets":[12,16]}}'
    for at, length, piece in changes:
        at %= len(header)
        header = header[:at] + piece + header[at + length :]
    blob = blob_of(header, bytes(range(16 + more)))
    try:
        found = decode(blob)
    except InvalidUploadError:
        return
    expected = safetensors.numpy.load(blob)
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            expected[name].dtype,
            expected[name].shape,
            expected[name].tobytes(),
        )


@pytest.mark.scenario(20, 21)
@pytest.mark.parametrize(
    "header",
    [
        b"",
        b" {}",
        b"\xef\xbb\xbf{}",
        "{}".encode("utf-16"),
        {"x": {**entry([1], 0, 4), "more": 1}},
        {"x": {"dtype": "F32", "shape": [1]}},
        {"x": [1, 2, 3]},
        {"x": entry([1], 0, 4) | {"dtype": ["F32"]}},
        {"x": entry([1], 0, 4) | {"shape": [True]}},
        {"x": entry([1], 0, 4) | {"shape": [1.0]}},
        {"x": entry([1], 0, 4) | {"shape": 1}},
        {"x": entry([1], -4, 0)},
        b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}',
        {"x": entry([1], 0, 4) | {"data_offsets": [0, 4, 8]}},
        {"x": entry([1], 0, 4) | {"data_offsets": [4, 0]}},
        {"x": entry([10**4000, 0], 0, 0), "y": entry([1], 0, 4)},
        {"__metadata__": {"a": 1}, "x": entry([1], 0, 4)},
        {"__metadata__": None, "x": entry([1], 0, 4)},
        {"\ud800": entry([1], 0, 4)},
        {"__metadata__": {"a": "\ud800"}, "x": entry([1], 0, 4)},
        b'{"x":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}',
    ],
)  # fmt: skip
def test_a_header_that_is_not_the_formats_is_refused(header: Any) -> None:
    """Scenarios 20, 21."""
    with pytest.raises(InvalidUploadError, match="not a readable safetensors blob"):
        decode(blob_of(header, bytes(4)))


@pytest.mark.scenario(20)
@pytest.mark.parametrize(
    "header",
    [
        b'{"x":{"dtype":"U8","shape":[' + b",".join([b"9999"] * 200_000) + b'],"data_offsets":[0,4]}}',
        b'{"x":{"dtype":"U8","shape":[' + b"9" * 1_000_000 + b'],"data_offsets":[0,4]}}',
        json.dumps({f"{i}": entry([0], 0, 0, "U8") for i in range(16_000)}).encode(),
        b'{"' + b"x" * 1_000_000 + b'":1}',
        b"{" * 1_000_000,
    ],
    ids=["many lengths", "a long number", "many tensors", "a long name", "deep"],
)
def test_a_megabyte_of_nonsense_is_refused_quickly_and_in_few_words(header: bytes) -> None:
    """Scenario 20."""
    assert len(header) <= MAX_HEADER_BYTES
    began = time.process_time()
    with pytest.raises(InvalidUploadError) as refused:
        decode(blob_of(header, bytes(4)))
    assert time.process_time() - began < 2.0
    assert len(str(refused.value)) < 500
