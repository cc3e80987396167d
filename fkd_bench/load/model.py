"""The tensors that no-op clients exchange, made or read; needs no torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fkd_common.config import RunConfig
from fkd_common.errors import DataError, InvalidUploadError, UsageError
from fkd_common.method.student_layout import initial_student
from fkd_common.tensors import Tensors, decode

EMBEDDING_DIM = 512
"""d of ResNet18."""
NUM_CLASSES = 10
STUDENT, RESNET18 = "student", "resnet18"
_STAGES = (64, 128, 256, 512)
"""Channels of ResNet18's stages of two blocks each (He et al., CVPR 2016, Table 1)."""


def exchanged_tensors(model: str) -> Tensors:
    """The tensors of a model.

    Args:
        model: `student`, `resnet18`, or the path of a safetensors file.

    Raises:
        UsageError: It is none of them.
        DataError: The file holds no floating-point tensors that numpy can read, or one with NaN or infinity.
    """
    if model == STUDENT:
        config = RunConfig()
        return initial_student(config.seed, EMBEDDING_DIM, config.hidden, NUM_CLASSES, config.norm)
    if model == RESNET18:
        return _resnet18()
    path = Path(model)
    try:
        tensors = decode(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"--model {model}: expected {STUDENT}, {RESNET18} or a safetensors file, got: {error.strerror}"
        ) from error
    except InvalidUploadError as error:
        raise DataError(f"--model {model}: {error}") from error
    if not any(array.dtype.kind == "f" for array in tensors.values()):
        raise DataError(f"--model {model}: expected floating-point tensors, got {len(tensors)} others")
    for name, array in tensors.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise DataError(
                f"--model {model}: expected finite values, got NaN or infinity in tensor {name!r}"
            )
    return tensors


def _resnet18() -> Tensors:
    """Weights and running statistics of a ResNet18 with ten classes, random: 11,191,242 float32."""
    shapes: dict[str, tuple[int, ...]] = {}

    def convolution(name: str, norm: str, out: int, into: int, kernel: int) -> None:
        shapes[f"{name}.weight"] = (out, into, kernel, kernel)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{norm}.{part}"] = (out,)

    convolution("conv1", "bn1", 64, 3, 7)
    into = 64
    for stage, out in enumerate(_STAGES, 1):
        for block in (0, 1):
            place = f"layer{stage}.{block}"
            convolution(f"{place}.conv1", f"{place}.bn1", out, into, 3)
            convolution(f"{place}.conv2", f"{place}.bn2", out, out, 3)
            if into != out:
                convolution(f"{place}.downsample.0", f"{place}.downsample.1", out, into, 1)
            into = out
    shapes["fc.weight"], shapes["fc.bias"] = (NUM_CLASSES, into), (NUM_CLASSES,)
    generator = np.random.default_rng(0)
    return {
        name: generator.standard_normal(shape, dtype=np.float32) * np.float32(0.05)
        for name, shape in shapes.items()
    }
