"""`fkd-bench codecs`: CPU seconds, bytes and error of every codec of networks and moments; one JSON object.

The codecs are those of runs, on made-up values: a network whose every weight has moved a little, at random, and the
second moments of Gaussian features. zstd finds a little more in real ones: docs/communication.md has a run's bytes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_bench.load.figures import Json
from fkd_bench.load.model import EMBEDDING_DIM, NUM_CLASSES, STUDENT, exchanged_tensors
from fkd_bench.narrator import Narrator
from fkd_client.threads import limit_threads
from fkd_common.choices import ModelCodec, MomentFeatures, StatisticsCodec, UpdateCodec
from fkd_common.codecs.statistics import pack_moments, unpack_moments
from fkd_common.codecs.student import pack_model, pack_update, unpack_model, unpack_update
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, ExitCode
from fkd_common.method.moments import accumulate, num_moment_features, pack_symmetric
from fkd_common.method.student_layout import layout_of
from fkd_common.program import OneSentenceParser
from fkd_common.tensors import Tensors, decode, encode

_MOVED = 0.01
"""Standard deviation of a weight's update: what forty steps of AdamW at a learning rate of 0.001 do."""
_SAMPLES = 2000
"""Of a site, in the moments."""

Pack = Callable[[], Mapping[str, NDArray[Any]]]
Unpack = Callable[[Tensors], Tensors]


def codec_time(arguments: list[str]) -> int:
    """Carry out `fkd-bench codecs`; returns the exit code."""
    parser = OneSentenceParser(
        prog="fkd-bench codecs",
        description="CPU seconds, bytes and error of every codec of updates, models and moments.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model",
        default=STUDENT,
        help="student (of the default configuration), resnet18, or a safetensors file",
    )
    parser.add_argument(
        "--times", type=_count, default=5, metavar="N", help="the median of so many is told (5)"
    )
    flags = parser.parse_args(arguments)
    limit_threads(1)
    narrator = Narrator()
    start = _codable(flags.model)
    found: dict[str, Json] = {"model": flags.model, "times": flags.times}
    for key, costs in {
        "update_codec": _updates,
        "model_codec": _models,
        "statistics_codec": _moments,
    }.items():
        narrator.say(f"every {key}")
        found[key] = costs(start, flags.times)
    print(json.dumps(found, indent=1))
    return ExitCode.OK


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"a number from 1 to 1000 expected, got {text!r}")
    return int(text)


def _codable(model: str) -> Tensors:
    """What codecs pack of a model: its float32 tensors that hold anything.

    Raises:
        DataError: There is no matrix among them, or nothing but zeros.
    """
    found = {
        name: array
        for name, array in exchanged_tensors(model).items()
        if array.dtype == np.float32 and array.size
    }
    if not any(array.ndim > 1 and array.any() for array in found.values()):
        raise DataError(f"--model {model}: expected a float32 matrix that is not all zeros, got none")
    return found


def _updates(start: Tensors, times: int) -> Json:
    """A network's update, on its way up; the error is relative to the update."""
    rng = np.random.default_rng(0)
    moved: Tensors = {
        name: array + rng.normal(0.0, _MOVED, array.shape).astype(np.float32) for name, array in start.items()
    }
    layout, length = layout_of(start), _distance(moved, start)
    if not length:
        raise DataError(f"expected weights that a step of {_MOVED} changes, got ones too large for that")
    return {
        codec.value: _cost(
            partial(pack_update, moved, start, codec, rng),
            partial(unpack_update, start=start, layout=layout, codec=codec),
            lambda tensors: _distance(tensors, moved) / length,
            times,
        )
        for codec in UpdateCodec
    }


def _models(model: Tensors, times: int) -> Json:
    """The averaged network, on its way down; the error is relative to the network."""
    layout, length = layout_of(model), _distance(model, {})
    return {
        codec.value: _cost(
            partial(pack_model, model, codec),
            partial(unpack_model, layout=layout, codec=codec),
            lambda tensors: _distance(tensors, model) / length,
            times,
        )
        for codec in ModelCodec
    }


def _moments(_: Tensors, times: int) -> Json:
    """A site's second moments, of the default student whatever the model; the error is that of A, relative to A."""
    p = num_moment_features(RunConfig().hidden, EMBEDDING_DIM, MomentFeatures.HIDDEN)
    rng = np.random.default_rng(2)
    z = rng.standard_normal((_SAMPLES, p), dtype=np.float32)
    z[:, -1] = 1.0
    sums = accumulate(z, rng.standard_normal((_SAMPLES, NUM_CLASSES), dtype=np.float32))
    known = EMBEDDING_DIM + 1  # sent before round 1, and not again
    A, B = pack_symmetric(sums.A, known).astype(np.float32), sums.B.astype(np.float32)
    left_out = np.diag(sums.A)[p - known :]
    return {
        codec.value: _cost(
            partial(pack_moments, A, B, left_out, codec, rng),
            partial(unpack_moments, p=p, num_classes=NUM_CLASSES, known_block=known, codec=codec),
            lambda tensors: _distance({"A": tensors["A"]}, {"A": A}) / _distance({"A": A}, {}),
            times,
        )
        for codec in StatisticsCodec
    }


def _cost(pack: Pack, unpack: Unpack, error: Callable[[Tensors], float], times: int) -> Json:
    """Bytes of the blob that travels; median CPU seconds to make it, and to get tensors from it; their error."""
    packing, unpacking = [], []
    for _ in range(times):
        began = time.process_time()
        blob = encode(pack())
        packing.append(time.process_time() - began)
        began = time.process_time()
        tensors = unpack(decode(blob))
        unpacking.append(time.process_time() - began)
    return {
        "bytes": len(blob),
        "pack_s": round(statistics.median(packing), 5),
        "unpack_s": round(statistics.median(unpacking), 5),
        "relative_error": float(f"{error(tensors):.3g}"),
    }


def _distance(a: Tensors, b: Tensors) -> float:
    """Euclidean, over all tensors; from zero where `b` lacks one."""
    squares = (np.square(array.astype(np.float64) - b.get(name, 0.0)).sum() for name, array in a.items())
    return float(np.sqrt(sum(squares)))
