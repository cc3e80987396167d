"""Names, shapes and first values of the student's tensors; the network itself never lives here.

[Linear → norm → GELU → Dropout] per hidden layer, then Linear. Order and names are those of torch's
``state_dict``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_common.choices import Norm


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor must look like."""

    shape: tuple[int, ...]
    dtype: str
    """numpy's name, such as ``float32``."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor's data."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def layout_of(tensors: Mapping[str, NDArray[Any]]) -> dict[str, TensorSpec]:
    """The specification of tensors that are there, by name."""
    return {name: TensorSpec(array.shape, str(array.dtype)) for name, array in tensors.items()}


def student_layout(d: int, hidden: Sequence[int], num_classes: int, norm: Norm) -> dict[str, TensorSpec]:
    """Every tensor of the student, in ``state_dict`` order.

    Args:
        d: embedding dimension.
        hidden: widths of the hidden layers.
        num_classes: C.
        norm: `batch` adds running statistics and a step counter per layer, `layer` does not.

    Returns:
        Specification by name.
    """
    layout: dict[str, TensorSpec] = {}
    width_in = d
    for i, width in enumerate(hidden):
        layer = f"layers.{i}"
        layout[f"{layer}.linear.weight"] = TensorSpec((width, width_in), "float32")
        layout[f"{layer}.linear.bias"] = TensorSpec((width,), "float32")
        layout[f"{layer}.norm.weight"] = TensorSpec((width,), "float32")
        layout[f"{layer}.norm.bias"] = TensorSpec((width,), "float32")
        if norm is Norm.BATCH:
            layout[f"{layer}.norm.running_mean"] = TensorSpec((width,), "float32")
            layout[f"{layer}.norm.running_var"] = TensorSpec((width,), "float32")
            layout[f"{layer}.norm.num_batches_tracked"] = TensorSpec((), "int64")
        width_in = width
    layout["output.weight"] = TensorSpec((num_classes, width_in), "float32")
    layout["output.bias"] = TensorSpec((num_classes,), "float32")
    return layout


def initial_student(
    seed: int, d: int, hidden: Sequence[int], num_classes: int, norm: Norm
) -> dict[str, NDArray[Any]]:
    """The student before round 1: hidden layers as torch draws them, output layer zero, so that S = 0.

    Args:
        seed: equal seeds give equal students.
        d: embedding dimension.
        hidden: widths of the hidden layers.
        num_classes: C.
        norm: normalisation.

    Returns:
        Tensors by name, shaped and typed as :func:`student_layout` says: linear layers uniform in ±1/√fan_in,
        norms 1 and 0, running statistics 0 and 1.
    """
    layout = student_layout(d, hidden, num_classes, norm)
    state = {name: np.zeros(spec.shape, dtype=spec.dtype) for name, spec in layout.items()}
    generator = np.random.default_rng(seed)
    for i, fan_in in enumerate([d, *hidden[:-1]]):
        bound = 1.0 / math.sqrt(fan_in)
        for name in (f"layers.{i}.linear.weight", f"layers.{i}.linear.bias"):
            state[name][...] = generator.uniform(-bound, bound, size=layout[name].shape)
        state[f"layers.{i}.norm.weight"][...] = 1.0
        if norm is Norm.BATCH:
            state[f"layers.{i}.norm.running_var"][...] = 1.0
    return state


def payload_bytes(layout: Mapping[str, TensorSpec]) -> int:
    """Bytes of all tensors of a layout, without names or framing."""
    return sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in layout.values())
