"""`fkd-bench growth`: what each part of a round costs as clients, samples, classes and embedding grow; one JSON object.

Every part is the code that runs use, on made-up embeddings: Gaussian clusters, one per class. Client parts are one
client's; coordinator parts are those of all K clients together. CPU seconds of this process, and payload bytes.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fkd_bench.narrator import Narrator
from fkd_client.extractor import Extractor
from fkd_client.pipeline import Pipeline
from fkd_client.progress import Progress, silent
from fkd_client.site import Site
from fkd_client.threads import limit_threads
from fkd_common.artifacts import BlobStore
from fkd_common.choices import Correction, FinetuneScope
from fkd_common.codecs.statistics import pack_moments, pack_statistics
from fkd_common.codecs.student import pack_update
from fkd_common.config import RunConfig
from fkd_common.errors import ExitCode
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.program import OneSentenceParser
from fkd_common.tensors import Tensors
from fkd_server.method.federated_method import TensorUpload
from fkd_server.method.fkd_rtm import FkdRtm
from fkd_server.validation import Background, UploadRules
from fkd_shards.shard import Shard

_NUM_ANCHORS = 500
_NAME = "site"
_FACTOR = 4
"""From a size to the next."""
_MOST_STEPS = 4
"""K = 2,560, n = 256,000."""
_TOO_SHORT_S = 0.02
"""What takes less is not compared: mostly noise."""


@dataclass(frozen=True)
class Size:
    """Of a federation."""

    clients: int = 10
    """K."""
    samples: int = 1000
    """n_k of every client."""
    classes: int = 10
    """C."""
    dim: int = 512
    """d of the embedding."""


@dataclass(frozen=True)
class Cost:
    """Of one size."""

    size: Size
    cpu_s: Mapping[str, float]
    """By part: client.* of one client, coordinator.* of all."""
    payload_bytes: Mapping[str, int]
    """Of one client's uploads, by phase; down_* what it is sent."""


class _MadeUp(Site):
    """A site whose images nobody has: embeddings in their place."""

    def __init__(self, size: Size, h: NDArray[np.float32], y: NDArray[np.int64], folder: Path) -> None:
        object.__setattr__(self, "_h", h)
        shard = Shard(
            _NAME, np.zeros((len(y), 1, 1, 1), np.uint8), y, tuple(map(str, range(size.classes))), ""
        )
        anchors = np.random.default_rng(1).standard_normal((_NUM_ANCHORS, size.dim), dtype=np.float32)
        images = np.zeros((_NUM_ANCHORS, 1, 1, 1), np.uint8)
        nothing: Any = Extractor.__new__(Extractor)
        super().__init__(_NAME, shard, nothing, "", images, anchors, size.classes, folder, "cpu", 1)

    def check_extractor(self) -> None:
        """There is none."""

    def embed(
        self, shard: Shard, progress: Progress = silent, scope: FinetuneScope = FinetuneScope.HEAD
    ) -> NDArray[np.float32]:
        """What was made up."""
        h: NDArray[np.float32] = self._h  # type: ignore[attr-defined]
        return h


def growth(arguments: list[str]) -> int:
    """Carry out `fkd-bench growth`; returns the exit code."""
    parser = OneSentenceParser(
        prog="fkd-bench growth",
        description="CPU seconds and bytes of a round's parts as K, n, C and d grow.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--steps", type=_few, default=2, help="sizes above the smallest, each 4 times the one before (2)"
    )
    parser.add_argument(
        "--trees", type=_steps, default=20, help="boosting rounds of teacher and residual learners (20)"
    )
    flags = parser.parse_args(arguments)
    limit_threads(1)
    narrator = Narrator()
    config = RunConfig(teacher_trees=flags.trees, residual_trees=flags.trees)
    cost_of(Size(clients=2, samples=100), config)  # what is loaded once is loaded now
    costs = []
    for size in sizes(flags.steps):
        narrator.say(f"K = {size.clients}, n = {size.samples}, C = {size.classes}, d = {size.dim}")
        costs.append(cost_of(size, config))
    print(json.dumps({"sizes": [_object(cost) for cost in costs], "exponents": exponents(costs)}, indent=1))
    return ExitCode.OK


def _few(text: str) -> int:
    steps = _steps(text)
    if steps > _MOST_STEPS:
        raise argparse.ArgumentTypeError(f"at most {_MOST_STEPS} expected, got {text}")
    return steps


def _steps(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"a whole number of at least 1 expected, got {text!r}")
    return int(text)


def sizes(steps: int) -> list[Size]:
    """The smallest size, and each of its four numbers grown by itself."""
    base, found = Size(), [Size()]
    for name, value in vars(base).items():
        factor = 2 if name == "dim" else _FACTOR  # the cube of 16 times 512 is beyond a laptop
        found += [replace(base, **{name: value * factor**step}) for step in range(1, steps + 1)]
    return found


def exponents(costs: Sequence[Cost]) -> dict[str, dict[str, float]]:
    """How every part grows with each number: log of the cost's ratio over log of the number's, at its two largest."""
    found: dict[str, dict[str, float]] = {}
    for name in vars(Size()):
        own = [
            cost
            for cost in costs
            if vars(replace(cost.size, **{name: 0})) == vars(replace(Size(), **{name: 0}))
        ]
        before, last = sorted(own, key=lambda cost: int(getattr(cost.size, name)))[-2:]
        ratio = math.log(getattr(last.size, name) / getattr(before.size, name))
        found[name] = {
            part: round(math.log(last.cpu_s[part] / before.cpu_s[part]) / ratio, 2)
            for part in last.cpu_s
            if min(last.cpu_s[part], before.cpu_s[part]) > _TOO_SHORT_S
        }
    return found


def cost_of(size: Size, config: RunConfig) -> Cost:
    """Run every part once.

    Args:
        size: Of the federation.
        config: The run configuration.
    """
    with tempfile.TemporaryDirectory(prefix="fkd-growth-") as folder:
        return _Federation(size, config, Path(folder)).cost()


class _Federation:
    """A client and a coordinator of one size."""

    def __init__(self, size: Size, config: RunConfig, folder: Path) -> None:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((size.classes, size.dim), dtype=np.float32)
        y = np.arange(round(size.samples / (1 - config.val_fraction))) % size.classes
        h = centres[y] + rng.standard_normal((len(y), size.dim), dtype=np.float32)
        self._size, self._config, self._rng = size, config, rng
        site = _MadeUp(size, h, y, folder)
        self._client = Pipeline(site, config)
        self._uploads = BlobStore(folder / "uploads")
        self._method = FkdRtm(
            config,
            tuple(map(str, range(size.classes))),
            site.anchor_embeddings,
            "",
            BlobStore(folder / "blobs"),
            self._uploads,
        )
        self._rules = UploadRules.of(self._method)
        self._cpu_s: dict[str, float] = {}
        self._bytes: dict[str, int] = {}

    def cost(self) -> Cost:
        """One round 1 with correction; the personal models are left out."""
        client, method, config = self._client, self._method, self._config
        with self._timed("client.teacher"):
            client.prepare()
        start = method.student()
        self._bytes["down_student"] = method.state.student.size
        with self._timed("client.student"):
            state = client.student(start, 1)
        packed = pack_update(state, start, config.update_codec, self._rng)
        self._fold("student", types.PHASE_STUDENT, packed, reliability=client.teacher.reliability)
        student = method.student()
        with self._timed("client.moments"):
            sums = client.moments(student, block_known=False)
            left_out = np.empty(0)
            packed = pack_moments(sums["A"], sums["B"], left_out, config.statistics_in_force, self._rng)
        self._fold("moments", types.PHASE_MOMENTS, packed)
        if Correction.ANCHORS in config.correction:
            with self._timed("client.residuals"):
                residuals = client.residuals(student)
            coded = pack_statistics({"residuals": residuals}, config.statistics_in_force)
            self._fold("residuals", types.PHASE_RESIDUALS, coded)
        if method.state.ascent is not None:
            V = np.zeros((method.num_moment_features, self._size.classes), np.float32)
            with self._timed("client.gradient"):
                gradient = client.gradient(student, V, config.moment_features)
            self._fold("gradient", REFINE_PHASES[0], pack_statistics(gradient, config.statistics_in_force))
        return Cost(self._size, self._cpu_s, self._bytes)

    def _fold(self, name: str, phase: int, packed: Mapping[str, Any], reliability: float = 1.0) -> None:
        """Check as many uploads as there are clients, each like the next, and fold them."""
        self._bytes[name] = sum(array.nbytes for array in packed.values())
        n, names = self._client.num_samples, [f"{_NAME}{number:06}" for number in range(self._size.clients)]
        content = {}
        with self._timed(f"coordinator.check_{name}"):
            for client in names:
                known = Background.of(self._method, 1, phase, client, n)
                tensors: Tensors = self._rules.unpacked(phase, dict(packed), known)
                self._rules.check_tensors(phase, tensors, known)
                content[client] = TensorUpload(self._uploads.put_tensors(tensors), n, reliability)
        with self._timed(f"coordinator.fold_{name}"):
            self._method.close(phase, content)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self._cpu_s[part] = time.process_time() - began


def _object(cost: Cost) -> dict[str, Any]:
    seconds = {part: round(value, 4) for part, value in cost.cpu_s.items()}
    return {**vars(cost.size), "cpu_s": seconds, "payload_bytes": dict(cost.payload_bytes)}
