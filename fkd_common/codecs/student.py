"""Networks on the wire: a client's update as a difference to what it started from, the average as it is.

Matrices are nearly all of a student; they are coded as the key says, and so are the filters of a convolution, one row
for each. Vectors - biases, norms and their statistics - keep float16's digits and float32's range, so that one large
variance leaves the others what they are; step counters go as they are. With `fp32` a network travels tensor by tensor,
as the papers have it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import ModelCodec, UpdateCodec
from fkd_common.codecs.quantise import (
    from_float16,
    rows_from_int8,
    rows_to_int8,
    to_float16,
    with_fewer_digits,
)
from fkd_common.codecs.rotation import num_blocks, packed_size, restore, rotate_and_quantise
from fkd_common.codecs.squeeze import Parts, squeeze
from fkd_common.method.student_layout import TensorSpec, layout_of
from fkd_common.tensors import Tensors

Layout = Mapping[str, TensorSpec]

_BITS = {UpdateCodec.INT4: 4, UpdateCodec.INT1: 1}


def rounding(seeds: Sequence[int], round_number: int, phase: int) -> np.random.Generator:
    """Draws of a task's codecs: a task that is done again is sent the same.

    Args:
        seeds: Of whoever packs.
        round_number: Of the task.
        phase: Of the task.
    """
    return np.random.default_rng([*seeds, round_number, phase])


def pack_update(
    student: Tensors, start: Tensors, codec: UpdateCodec, rng: np.random.Generator
) -> Mapping[str, NDArray[Any]]:
    """A trained student as its difference to where training started.

    Args:
        student: W_k, finite tensors of the run's layout.
        start: W_t.
        codec: How its matrices are coded.
        rng: Rounds without bias, and draws the seed of a rotation.
    """
    if codec is UpdateCodec.FP32:
        return student
    layout = layout_of(student)
    moved = _joined(student[name] - start[name] for name in _matrices(layout))
    return {**_pack_matrices(moved, layout, codec, rng), **_pack_rest(student, layout)}


def unpack_update(packed: Tensors, start: Tensors, layout: Layout, codec: UpdateCodec) -> Tensors:
    """The student that a client trained from `start`, nearly; with `fp32` as it came, unchecked.

    Raises:
        InvalidUploadError: It was packed otherwise.
    """
    if codec is UpdateCodec.FP32:
        return packed
    parts = Parts(packed)
    moved = _split(_unpack_matrices(parts, layout, codec), layout, _matrices(layout))
    with np.errstate(over="ignore", invalid="ignore"):
        matrices = {name: start[name] + difference for name, difference in moved.items()}
    return _whole(matrices, parts, layout)


def pack_model(student: Tensors, codec: ModelCodec) -> Mapping[str, NDArray[Any]]:
    """An averaged student, for everybody."""
    if codec is ModelCodec.FP32:
        return student
    layout = layout_of(student)
    values = _joined(student[name] for name in _matrices(layout))
    return {**_pack_matrices(values, layout, UpdateCodec(codec), None), **_pack_rest(student, layout)}


def unpack_model(packed: Tensors, layout: Layout, codec: ModelCodec) -> Tensors:
    """The student that everybody computes with, the coordinator too; with `fp32` as it came, unchecked.

    Raises:
        InvalidUploadError: It was packed otherwise.
    """
    if codec is ModelCodec.FP32:
        return packed
    parts = Parts(packed)
    values = _unpack_matrices(parts, layout, UpdateCodec(codec))
    return _whole(_split(values, layout, _matrices(layout)), parts, layout)


def _pack_matrices(
    values: NDArray[np.float32], layout: Layout, codec: UpdateCodec, rng: np.random.Generator | None
) -> Tensors:
    if codec is UpdateCodec.FP16:
        halves, scale = to_float16(values)
        return {"matrices": squeeze(halves), "scales": scale}
    if codec is UpdateCodec.INT8:
        steps, scales = rows_to_int8(values, _row_lengths(layout), rng)
        return {"matrices": squeeze(steps), "scales": scales}
    assert rng is not None
    seed = rng.integers(2**63)
    codes, scales = rotate_and_quantise(values, _BITS[codec], int(seed))
    return {"matrices": codes, "scales": scales, "seed": np.asarray(seed, dtype=np.uint64)}


def _unpack_matrices(parts: Parts, layout: Layout, codec: UpdateCodec) -> NDArray[np.float32]:
    count = _count(layout, _matrices(layout))
    if codec is UpdateCodec.FP16:
        scale = parts.take("scales", (), "float32")
        return from_float16(parts.take_squeezed("matrices", (count,), "float16"), scale)
    if codec is UpdateCodec.INT8:
        lengths = _row_lengths(layout)
        scales = parts.take("scales", (len(lengths),), "float32")
        with np.errstate(over="ignore", invalid="ignore"):
            return rows_from_int8(parts.take_squeezed("matrices", (count,), "int8"), scales, lengths)
    bits = _BITS[codec]
    codes = parts.take("matrices", (packed_size(count, bits),), "uint8")
    scales = parts.take("scales", (num_blocks(count),), "float32")
    return restore(codes, scales, bits, int(parts.take("seed", (), "uint64")), count)


def _pack_rest(student: Tensors, layout: Layout) -> Tensors:
    vectors = _joined(student[name] for name in _vectors(layout))
    counters = [int(student[name]) for name in _counters(layout)]
    return {
        "vectors": squeeze(with_fewer_digits(vectors)),
        **({"counters": np.array(counters, dtype=np.int64)} if counters else {}),
    }


def _whole(matrices: Tensors, parts: Parts, layout: Layout) -> Tensors:
    vectors, counters = _vectors(layout), _counters(layout)
    values = parts.take_squeezed("vectors", (_count(layout, vectors),), "float32")
    found = {**matrices, **_split(values, layout, vectors)}
    if counters:
        counts = parts.take("counters", (len(counters),), "int64")
        found.update({name: np.asarray(count) for name, count in zip(counters, counts, strict=True)})
    parts.finish()
    return {name: found[name] for name in layout}


def _matrices(layout: Layout) -> list[str]:
    return [name for name in sorted(layout) if len(layout[name].shape) >= 2]


def _vectors(layout: Layout) -> list[str]:
    return [name for name, spec in sorted(layout.items()) if len(spec.shape) < 2 and spec.dtype == "float32"]


def _counters(layout: Layout) -> list[str]:
    return [name for name, spec in sorted(layout.items()) if spec.dtype != "float32"]


def _row_lengths(layout: Layout) -> list[int]:
    shapes = [layout[name].shape for name in _matrices(layout)]
    return [math.prod(shape[1:]) for shape in shapes for _ in range(shape[0])]


def _joined(arrays: Iterable[NDArray[Any]]) -> NDArray[np.float32]:
    flat = [np.asarray(array, dtype=np.float32).reshape(-1) for array in arrays]
    return np.concatenate(flat) if flat else np.empty(0, dtype=np.float32)


def _split(values: NDArray[np.float32], layout: Layout, names: Iterable[str]) -> Tensors:
    """What :func:`_joined` was given, by name."""
    found, start = Tensors(), 0
    for name in names:
        size = math.prod(layout[name].shape)
        found[name] = values[start : start + size].reshape(layout[name].shape)
        start += size
    return found


def _count(layout: Layout, names: Iterable[str]) -> int:
    return sum(math.prod(layout[name].shape) for name in names)
