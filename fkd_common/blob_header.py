"""The JSON header of a safetensors blob, read strictly and written as the safetensors library writes it; no data.

https://github.com/huggingface/safetensors#format: names with dtype, shape and place in the data, which they are to fill
without holes or overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_METADATA = "__metadata__"
_DTYPES = {
    "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F32": "float32", "U32": "uint32",
    "I32": "int32", "F16": "float16", "U16": "uint16", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""What numpy has of the format's, in the order in which the library writes tensors."""
_NUMPY = {code: np.dtype(name).newbyteorder("<") for code, name in _DTYPES.items()}
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}
_RANK = {code: rank for rank, code in enumerate(_DTYPES)}
_ALIGNMENT = 8
_MAX_DIMENSIONS = 64
"""More than any numpy has: shapes are multiplied out, which takes long for a million numbers."""
_MAX_LENGTH = 2**63
_SHOWN = 80
"""Characters of a name that a message repeats."""


class Place(NamedTuple):
    """A tensor, and which bytes of the data are its own."""

    dtype: np.dtype[Any]
    """Little-endian."""
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(header: bytes | memoryview, data_bytes: int) -> dict[str, Place]:
    """What a header says, in the order of the data.

    Args:
        header: JSON, without its length before it.
        data_bytes: How much data follows.

    Raises:
        ValueError: It is malformed, or its tensors are not exactly the data.
    """
    if header[:1] != b"{":
        raise ValueError("the header is not a JSON object")
    try:
        found = json.loads(str(header, "utf-8"), object_pairs_hook=_once, parse_int=_natural)
    except RecursionError as error:
        raise ValueError("the header is nested too deeply") from error
    _check_metadata(found.pop(_METADATA, {}))
    places = {name: _place(name, entry) for name, entry in found.items()}
    order = sorted(places, key=lambda name: (places[name].start, places[name].end))
    reached = 0
    for name in order:
        if places[name].start != reached:
            raise ValueError(f"{_shown(name)} begins at byte {places[name].start}; expected {reached}")
        reached = places[name].end
    if reached != data_bytes:
        raise ValueError(f"the tensors have {reached} bytes; {data_bytes} came")
    return {name: places[name] for name in order}


def write_header(
    tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None
) -> tuple[bytes, list[str]]:
    """The header of some tensors, with its length before it, and the order of their data.

    Raises:
        ValueError: The format has no such dtype, or reserves the name.
    """
    if _METADATA in tensors:
        raise ValueError(f"no tensor can be named {_METADATA!r}")
    codes = {name: _code(name, array.dtype) for name, array in tensors.items()}
    order = sorted(codes, key=lambda name: (_RANK[codes[name]], name.encode()))
    described: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
    reached = 0
    for name in order:
        array = tensors[name]
        end = reached + array.nbytes
        described[name] = {
            "dtype": codes[name],
            "shape": list(array.shape),
            "data_offsets": [reached, end],
        }
        reached = end
    header = json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(8, "little") + header, order


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name[:_SHOWN]!r} is there twice")
        found[name] = value
    return found


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise ValueError(f"{digits[:_SHOWN]} is below 0, or a zero with a sign")
    return int(digits)


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError(f"{_METADATA} is not an object of texts")
    "".join((*metadata, *metadata.values())).encode()  # JSON has escapes for what is no text


def _place(name: str, entry: Any) -> Place:
    name.encode()
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{_shown(name)} has no dtype, shape and data_offsets")
    code, shape, offsets = entry["dtype"], _numbers(entry["shape"]), _numbers(entry["data_offsets"])
    if not isinstance(code, str) or code not in _NUMPY:
        raise ValueError(f"{_shown(name)} has dtype {str(code)[:20]!r}; expected one of {', '.join(_DTYPES)}")
    if shape is None or offsets is None or len(offsets) != 2:
        raise ValueError(
            f"{_shown(name)} has no shape of at most {_MAX_DIMENSIONS} lengths, or not two offsets"
        )
    dtype, (start, end) = _NUMPY[code], offsets
    if end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{_shown(name)} of shape {shape} and dtype {code} has {end - start} bytes")
    return Place(dtype, shape, start, end)


def _numbers(values: Any) -> tuple[int, ...] | None:
    """A short list of whole numbers, of which none is below 0 here; None if it is none."""
    if not isinstance(values, list) or len(values) > _MAX_DIMENSIONS:
        return None
    if not all(type(value) is int and value < _MAX_LENGTH for value in values):
        return None
    return tuple(values)


def _code(name: str, dtype: np.dtype[Any]) -> str:
    try:
        return _CODES[dtype.newbyteorder("=")]
    except KeyError:
        raise ValueError(
            f"{_shown(name)} has dtype {dtype}; expected one of {', '.join(_DTYPES.values())}"
        ) from None


def _shown(name: str) -> str:
    return f"tensor {name[:_SHOWN]!r}"
