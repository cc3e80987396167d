"""The pickles CIFAR is published in, read so that nothing in them can run: every name in them means a stub."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fkd_common.errors import DataError
from fkd_shards.arrays import reason_of

_MAX_BYTES = 1 << 30
_DTYPES = {"u1": np.uint8, "i1": np.int8, "i2": np.int16, "i4": np.int32, "i8": np.int64}


class _Stub:
    """Base of all stubs: a pickle may create them but not give them attributes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("unexpected state")


class _Dtype(_Stub):
    """``numpy.dtype(code, …)``: remembers the code."""

    __slots__ = ("code",)

    def __init__(self, code: object, *_: object) -> None:
        self.code = str(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment follow from the code."""


class _Array(_Stub):
    """``numpy.ndarray`` as a pickle describes it: shape, dtype and raw bytes, nothing allocated from them."""

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: NDArray[np.generic] = np.empty(0, np.uint8)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise pickle.UnpicklingError("unexpected array state")
        _, shape, dtype, fortran, raw = state
        self.array = _plain_array(raw, dtype, shape, "F" if fortran else "C")


class _Reconstruct(_Stub):
    """``numpy.core.multiarray._reconstruct``: an empty array that its state will fill."""

    def __new__(cls, *_: object) -> _Array:  # type: ignore[misc]
        return _Array()


class _FromBuffer(_Stub):
    """``numpy._core.numeric._frombuffer``: how protocol 5 writes arrays."""

    def __new__(cls, raw: object, dtype: object, shape: object, order: object) -> _Array:  # type: ignore[misc]
        result = _Array()
        result.array = _plain_array(raw, dtype, shape, order)
        return result


class _Encode(_Stub):
    """``_codecs.encode``: how protocol 2 of Python 3 writes bytes."""

    def __new__(cls, text: object, encoding: object = "latin1") -> bytes:  # type: ignore[misc]
        if not isinstance(text, str) or encoding != "latin1":
            raise pickle.UnpicklingError("unexpected encoding")
        return text.encode("latin1")


_ALLOWED: Mapping[tuple[str, str], type[_Stub]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _FromBuffer,
    ("numpy._core.numeric", "_frombuffer"): _FromBuffer,
    ("_codecs", "encode"): _Encode,
}


def _plain_array(raw: object, dtype: object, shape: object, order: object) -> NDArray[np.generic]:
    if isinstance(raw, str):  # Python 2 wrote bytes as text
        raw = raw.encode("latin1")
    if not isinstance(dtype, _Dtype) or dtype.code not in _DTYPES:
        raise pickle.UnpicklingError("integer arrays expected")
    if not isinstance(shape, tuple) or not all(isinstance(side, int) and side >= 0 for side in shape):
        raise pickle.UnpicklingError("unexpected array shape")
    kind = np.dtype(_DTYPES[dtype.code]).newbyteorder("<")
    if not isinstance(raw, bytes | bytearray) or len(raw) != math.prod(shape) * kind.itemsize:
        raise pickle.UnpicklingError("array bytes do not fit its shape")
    return np.frombuffer(raw, kind).reshape(shape, order="F" if order == "F" else "C")


# The unpickler written in Python: the one in C allocates a memo as large as the pickle claims.
class _InertUnpickler(pickle._Unpickler):
    """Resolves no name outside ``_ALLOWED``; allocates no more than there are bytes to read."""

    # Set by the base class while it loads; its stubs do not say so.
    read: Callable[[int], bytes]
    append: Callable[[object], None]

    def _load_bytearray8(self) -> None:
        """The library's own reader fills as many zeros as the pickle claims before it reads."""
        size = int.from_bytes(self.read(8), "little")
        data = bytearray(self.read(min(size, _MAX_BYTES)))
        if len(data) != size:
            raise EOFError(f"{size} bytes claimed, {len(data)} there")
        self.append(data)

    dispatch = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: _load_bytearray8}  # type: ignore[dict-item]  # noqa: RUF012

    def find_class(self, module: str, name: str) -> type[_Stub]:
        stub = _ALLOWED.get((module, name))
        if stub is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no published file does")
        return stub


def read_inert_pickle(path: Path) -> dict[str, object]:
    """A pickled dictionary of integer arrays, lists, numbers and strings, as CIFAR publishes them.

    Returns:
        The dictionary; keys are str, arrays are numpy arrays, bytes stay bytes.

    Raises:
        DataError: Unreadable, too large, not such a dictionary, or it names anything that could run.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise pickle.UnpicklingError(f"more than {_MAX_BYTES} bytes")
        with path.open("rb") as stream:
            content = _InertUnpickler(stream, encoding="latin1").load()
        if not isinstance(content, dict):
            raise pickle.UnpicklingError(f"a dictionary expected, got {type(content).__name__}")
        return {
            _text(key): value.array if isinstance(value, _Array) else value for key, value in content.items()
        }
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged or hostile pickle can fail in any way
        raise DataError(f"{path} is refused: {reason_of(error)}: fetch the published file again") from error


def _text(key: object) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)
