"""Named tensors to bytes and back, in the safetensors layout, with schema and finiteness checks; no pickle.

Everything that crosses the wire as a blob is one safetensors file: an 8-byte header length, a JSON header
and the tensors' data. *Payload* is the data alone; header and framing count as message bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fkd_common.blob_header import read_header, write_header
from fkd_common.errors import InvalidUploadError
from fkd_common.method.student_layout import TensorSpec

Tensors: TypeAlias = dict[str, NDArray[Any]]

MAX_HEADER_BYTES = (1 << 20) - 8
"""With its 8-byte length, a header fits the first chunk of a transfer."""


def encode(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """Serialise tensors deterministically.

    Args:
        tensors: Arrays by name; made contiguous, little-endian.
        metadata: At most one entry, since the format does not order several.

    Raises:
        ValueError: The format has no such dtype or reserves a name, or there is more metadata.
    """
    return b"".join(encoded_parts(tensors, metadata))


def encoded_parts(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """The bytes of :func:`encode` piece by piece, without a copy of the tensors; arguments and errors as there."""
    if metadata is not None and len(metadata) > 1:
        raise ValueError("metadata may have one entry: several would not serialise deterministically")
    arrays = {name: np.asarray(array) for name, array in tensors.items()}
    header, order = write_header(arrays, metadata)
    yield header
    for name in order:
        array = arrays[name]
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        yield plain.reshape(-1).view(np.uint8).data


def decode(blob: bytes | memoryview) -> Tensors:
    """Parse a blob without copying it: the arrays are views of it, writeable if it is.

    Raises:
        InvalidUploadError: The header is oversized or malformed, or offsets do not match the data.
    """
    start = payload_offset(blob[:8], len(blob))
    try:
        places = read_header(memoryview(blob)[8:start], len(blob) - start)
        return {
            name: _aligned(np.ndarray(place.shape, place.dtype, blob, start + place.start))
            for name, place in places.items()
        }
    except ValueError as error:
        raise InvalidUploadError(f"not a readable safetensors blob: {error}") from error


def decode_writeable(blob: bytes) -> Tensors:
    """:func:`decode` into memory of the caller's own, for code that may change what it is given."""
    return decode(memoryview(bytearray(blob)))


def _aligned(view: NDArray[Any]) -> NDArray[Any]:
    """The view, or a copy of it where a foreign header put the data between the places that processors like."""
    if view.flags.aligned:
        return view
    copy = view.copy()
    copy.flags.writeable = view.flags.writeable
    return copy


def payload_offset(head: bytes | memoryview, size: int) -> int:
    """Where the tensor data starts in a blob of `size` bytes, from its first 8 bytes.

    Raises:
        InvalidUploadError: The header length does not fit the blob or the cap.
    """
    if len(head) < 8:
        raise InvalidUploadError(f"expected a safetensors blob of at least 8 bytes, got {size}")
    header_bytes = int.from_bytes(head[:8], "little")
    if header_bytes > min(MAX_HEADER_BYTES, size - 8):
        raise InvalidUploadError(
            f"safetensors header claims {header_bytes} bytes in a blob of {size} (cap {MAX_HEADER_BYTES})"
        )
    return 8 + header_bytes


def chunk_payload(data: bytes | memoryview, offset: int, size: int) -> int:
    """How many bytes of a chunk of a blob are tensor data; a first chunk must hold the whole header.

    Raises:
        InvalidUploadError: It does not, or the header's length is a lie.
    """
    if offset > 0:
        return len(data)
    start = payload_offset(data[:8], size)
    if start > len(data):
        raise InvalidUploadError(
            f"first chunk of {len(data)} bytes; expected the whole header, {start} bytes"
        )
    return len(data) - start


def metadata_of(blob: bytes) -> dict[str, str]:
    """The blob's free-text metadata."""
    start = payload_offset(blob[:8], len(blob))
    try:
        found = json.loads(blob[8:start]).get("__metadata__", {})
        return {str(key): str(value) for key, value in found.items()}
    except (ValueError, AttributeError, RecursionError) as error:
        raise InvalidUploadError(f"safetensors header is not a JSON object: {error}") from error


def max_blob_bytes(schema: Mapping[str, TensorSpec]) -> int:
    """Largest blob a peer may send for this schema: the tensors plus room for a header."""
    return sum(spec.num_bytes for spec in schema.values()) + 256 * (len(schema) + 4)


def check_schema(
    tensors: Mapping[str, NDArray[Any]], schema: Mapping[str, TensorSpec], *, finite: bool = True
) -> None:
    """Refuse tensors whose names, shapes, dtypes or values are not what the schema says.

    Args:
        tensors: By name.
        schema: What they must look like.
        finite: Whether values are looked at too.

    Raises:
        InvalidUploadError: Naming the first tensor that differs, what was expected and what came.
    """
    missing, extra = sorted(schema.keys() - tensors.keys()), sorted(tensors.keys() - schema.keys())
    if missing or extra:
        raise InvalidUploadError(
            f"tensor names differ: missing {missing or 'none'}, unexpected {extra or 'none'}",
            reason="WRONG_NAMES",
        )
    for name, spec in schema.items():
        array = tensors[name]
        if array.shape != spec.shape:
            raise InvalidUploadError(
                f"tensor {name!r}: expected shape {spec.shape}, got {array.shape}", reason="WRONG_SHAPE"
            )
        if array.dtype != np.dtype(spec.dtype):
            raise InvalidUploadError(
                f"tensor {name!r}: expected dtype {spec.dtype}, got {array.dtype}", reason="WRONG_DTYPE"
            )
        if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidUploadError(f"tensor {name!r} contains NaN or infinity", reason="NOT_FINITE")
