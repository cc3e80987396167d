"""Tensors to bytes and back: determinism, and every lie a header can tell."""

from __future__ import annotations

import contextlib
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkd_common.errors import InvalidUploadError
from fkd_common.method.student_layout import TensorSpec
from fkd_common.tensors import (
    MAX_HEADER_BYTES,
    check_schema,
    chunk_payload,
    decode,
    decode_writeable,
    encode,
    encoded_parts,
    max_blob_bytes,
    metadata_of,
    payload_offset,
)


def blob_of(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


# -- round trip --


def test_values_shapes_and_dtypes_survive() -> None:
    sent = {
        "w": np.array([[1.5, -0.0], [3.4e38, 1e-45]], dtype=np.float32),
        "steps": np.array(7, dtype=np.int64),
        "images": np.zeros((2, 0, 3), dtype=np.uint8),
    }
    received = decode(encode(sent))
    assert received.keys() == sent.keys()
    for name, array in sent.items():
        assert (received[name].dtype, received[name].shape) == (array.dtype, array.shape)
        assert received[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2] / 2,
        np.arange(6, dtype=">f4").reshape(2, 3),
    ],
    ids=["fortran", "strided", "big-endian"],
)
def test_memory_layout_does_not_reach_the_bytes(array: np.ndarray) -> None:
    plain = np.array(array.tolist(), dtype=np.float32)
    assert encode({"w": array}) == encode({"w": plain})


def test_the_order_of_names_does_not_reach_the_bytes() -> None:
    a, b = np.zeros(3, dtype=np.float32), np.ones(2, dtype=np.float32)
    assert encode({"a": a, "b": b}) == encode({"b": b, "a": a})


def test_the_parts_are_the_blob_and_share_the_tensors_memory() -> None:
    tensors = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(1, dtype=np.int64)}
    parts = list(encoded_parts(tensors))
    assert b"".join(parts) == encode(tensors)
    assert np.shares_memory(np.asarray(parts[-1]), tensors["w"])


def test_decoded_tensors_are_the_blobs_own_memory_and_cannot_be_changed() -> None:
    blob = encode({"w": np.arange(6, dtype=np.float32)})
    array = decode(blob)["w"]
    assert np.shares_memory(array, np.frombuffer(blob, np.uint8))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0


def test_what_is_decoded_to_be_changed_leaves_the_blob_as_it_was() -> None:
    blob = encode({"w": np.arange(6, dtype=np.float32)})
    decode_writeable(blob)["w"][:] = 0.0
    np.testing.assert_array_equal(decode(blob)["w"], np.arange(6, dtype=np.float32))


@pytest.mark.parametrize("odd", range(1, 8))
def test_a_header_of_any_length_gives_aligned_tensors(odd: int) -> None:
    """The library fills headers up to a multiple of 8 bytes; others need not."""
    header = json.dumps({"w": entry([2], 0, 16, "F64")}).encode()
    header += b" " * ((odd - len(header)) % 8)
    blob = blob_of(header, np.array([0.5, -2.0]).tobytes())
    for array in (decode(blob)["w"], decode_writeable(blob)["w"]):
        assert array.flags.aligned
        assert array.tolist() == [0.5, -2.0]
    assert not decode(blob)["w"].flags.writeable
    assert decode_writeable(blob)["w"].flags.writeable


def test_metadata_survives_and_is_limited_to_what_serialises_deterministically() -> None:
    assert metadata_of(encode({"w": np.zeros(1)}, {"key": "välue"})) == {"key": "välue"}
    assert metadata_of(encode({"w": np.zeros(1)})) == {}
    with pytest.raises(ValueError, match="one entry"):
        encode({}, {"a": "1", "b": "2"})


# -- lies --


@pytest.mark.scenario(11, 19, 20, 21)
@pytest.mark.parametrize(
    "blob",
    [
        b"",
        b"1234567",
        (8 << 30).to_bytes(8, "little") + b"{}",
        (2**64 - 1).to_bytes(8, "little") + b"{}",
        blob_of(b" " * (MAX_HEADER_BYTES + 1)),
        blob_of(b"\xff\xfe"),
        blob_of(b"[" * 100_000),
        blob_of(b'{"a":' * 100_000),
        blob_of([1]),
        blob_of({"x": 1}),
        blob_of({"x": entry([1], 0, 4), "y": entry([1], 0, 4)}, bytes(4)),
        blob_of({"x": entry([2], 0, 8), "y": entry([2], 4, 12)}, bytes(12)),
        blob_of({"x": entry([2**62, 2**62], 0, 4)}, bytes(4)),
        blob_of({"x": entry([2**32, 2**32], 0, 0)}),
        blob_of({"x": entry([0, 2**63], 0, 0)}),
        blob_of({"x": entry([1] * 100, 0, 4)}, bytes(4)),
        blob_of({"x": entry([-1], 0, 4)}, bytes(4)),
        blob_of({"x": entry([1], 0, 4)}, bytes(3)),
        blob_of({"x": entry([1], 0, 4)}, bytes(5)),
        blob_of({"x": entry([1], 4, 8)}, bytes(8)),
        blob_of({"x": entry([1], 0, 2, "BF16")}, bytes(2)),
        blob_of({"x": entry([1], 0, 4, "pickle")}, bytes(4)),
        blob_of(
            b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
            b'"x":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            bytes(8),
        ),
        pickle.dumps({"w": [1.0]}),
        b"PK\x03\x04" + bytes(100),
    ],
    ids=[
        "empty", "seven bytes", "8 GB header", "2^64 header", "header above the cap", "not UTF-8", "deep list",
        "deep object", "not an object", "entry not an object", "same bytes twice", "overlapping offsets",
        "shape product overflow", "overflow over no data", "dimension overflow", "100 dimensions",
        "negative dimension", "truncated", "trailing data", "gap", "dtype numpy lacks", "unknown dtype",
        "duplicate name", "pickle", "torch.save",
    ],
)  # fmt: skip
def test_a_blob_that_lies_is_refused(blob: bytes) -> None:
    """Scenarios 11, 19, 20, 21."""
    with pytest.raises(InvalidUploadError):
        decode(blob)


@pytest.mark.parametrize(
    "header", [b"[" * 100_000, [1], {"__metadata__": [1]}, {"__metadata__": "x"}, b"\xff", b"nonsense"]
)
def test_metadata_of_a_malformed_header_is_refused(header: Any) -> None:
    with pytest.raises(InvalidUploadError, match="not a JSON object"):
        metadata_of(blob_of(header))


def test_the_largest_header_is_announced_in_the_error() -> None:
    with pytest.raises(InvalidUploadError, match=f"claims {8 << 30} bytes in a blob of 10"):
        payload_offset((8 << 30).to_bytes(8, "little"), 10)


@pytest.mark.scenario(20, 21)
@given(at=st.integers(0, 10_000), value=st.integers(0, 255), cut=st.integers(0, 40))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_blob_with_a_wrong_byte_is_read_or_refused_and_nothing_else(at: int, value: int, cut: int) -> None:
    """Scenarios 20, 21."""
    blob = bytearray(encode({"w": np.ones((2, 3), dtype=np.float32), "n": np.array(1)}, {"key": "value"}))
    header = payload_offset(bytes(blob[:8]), len(blob))
    blob[at % header] = value
    for read in (decode, metadata_of):
        with contextlib.suppress(InvalidUploadError):
            read(bytes(blob[: len(blob) - cut]))


# -- schema --

SCHEMA = {"w": TensorSpec((2, 3), "float32"), "steps": TensorSpec((), "int64")}


def valid() -> dict[str, np.ndarray]:
    return {"w": np.zeros((2, 3), dtype=np.float32), "steps": np.array(1, dtype=np.int64)}


def test_tensors_of_the_schema_pass() -> None:
    check_schema(valid(), SCHEMA)


@pytest.mark.scenario(10, 11, 20)
@pytest.mark.parametrize(
    "change, reason, message",
    [
        ({"w": np.zeros((3, 2), np.float32)}, "WRONG_SHAPE", "'w': expected shape (2, 3), got (3, 2)"),
        ({"w": np.zeros((2, 3))}, "WRONG_DTYPE", "'w': expected dtype float32, got float64"),
        ({"steps": np.array(1, np.int32)}, "WRONG_DTYPE", "'steps': expected dtype int64, got int32"),
        ({"w": np.full((2, 3), np.nan, np.float32)}, "NOT_FINITE", "'w' contains NaN or infinity"),
        ({"w": np.full((2, 3), -np.inf, np.float32)}, "NOT_FINITE", "'w' contains NaN or infinity"),
        ({"../w": np.zeros(1, np.float32)}, "WRONG_NAMES", "unexpected ['../w']"),
    ],
)
def test_the_first_tensor_that_differs_is_named(change: dict[str, Any], reason: str, message: str) -> None:
    """Scenarios 10, 11, 20."""
    with pytest.raises(InvalidUploadError) as refused:
        check_schema({**valid(), **change}, SCHEMA)
    assert refused.value.reason == reason
    assert message in str(refused.value)


@pytest.mark.scenario(11)
def test_a_missing_tensor_is_named() -> None:
    """Scenario 11."""
    with pytest.raises(InvalidUploadError, match=r"missing \['steps'\], unexpected none"):
        check_schema({"w": valid()["w"]}, SCHEMA)


def test_the_size_cap_leaves_room_for_a_header_and_nothing_else() -> None:
    blob = encode(valid())
    assert len(blob) <= max_blob_bytes(SCHEMA) <= len(blob) + 2048


# -- payload --


@pytest.mark.parametrize("first", [0, 1, 5, 400])
@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
def test_payload_adds_up_over_any_chunking(first: int, step: int) -> None:
    blob = encode({"w": np.arange(100, dtype=np.float32), "n": np.array(1, dtype=np.int64)})
    edge = payload_offset(blob[:8], len(blob)) + first
    chunks = [(0, blob[:edge])] + [(at, blob[at : at + step]) for at in range(edge, len(blob), step)]
    assert sum(chunk_payload(data, at, len(blob)) for at, data in chunks) == 408


@pytest.mark.scenario(20)
def test_a_first_chunk_without_the_whole_header_is_refused() -> None:
    blob = encode({"w": np.zeros(1)})
    start = payload_offset(blob[:8], len(blob))
    assert chunk_payload(blob[:start], 0, len(blob)) == 0
    for length in (0, 7, 8, start - 1):
        with pytest.raises(InvalidUploadError):
            chunk_payload(blob[:length], 0, len(blob))
