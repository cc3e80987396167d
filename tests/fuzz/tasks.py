"""What a coordinator may ask of a client: a site of a few samples does what it is told, or says why not."""

from __future__ import annotations

import functools
import hashlib
import random
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from google.protobuf.message import DecodeError

from fkd_client.pipeline import Pipeline
from fkd_client.session import Session
from fkd_client.site import Site
from fkd_client.tasks import TaskRunner
from fkd_client.teacher import train_teacher
from fkd_client.transfer import Transfer
from fkd_common.artifacts import BlobStore
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.method.student_layout import initial_student
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import Tensors, decode, encode
from fkd_shards.shard import Shard

from .answers import Scripted
from .framing import join, split
from .requests import change_field
from .target import Target, demand

C, D, M, N = 2, 3, 4, 12
CONFIG = RunConfig(
    rounds=1, hidden=(2,), dropout=(0.0,), norm="layer", local_steps=1, batch_size=4, teacher_trees=2,
    residual_trees=1, min_val=2, personal=("closed_form", "prior", "blend"), lambda_grid=(1.0, 10.0),
)  # fmt: skip


@functools.cache
def site() -> Pipeline:
    """A site that has prepared: 12 samples of 3 dimensions, 2 classes, 4 anchors."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    h, anchors = rng.normal(size=(N, D)).astype(np.float32), rng.normal(size=(M, D)).astype(np.float32)
    labels = np.arange(N) % C
    shard = Shard("s", np.zeros((N, 2, 2, 1), np.uint8), labels, ("cat", "dog"), "ab" * 32)
    images = np.zeros((M, 2, 2, 1), np.uint8)
    given: Any = (None, "cd" * 32, images, anchors, C, Path("unused"), "cpu", 1)
    pipeline = Pipeline(Site("s", shard, *given), CONFIG)
    pipeline.train_rows, pipeline.val_rows = np.arange(8), np.arange(8, N)
    pipeline.embeddings = h
    pipeline.h, pipeline.y, pipeline.h_val, pipeline.y_val = h[:8], labels[:8], h[8:], labels[8:]
    pipeline.teacher = train_teacher(
        pipeline.h, pipeline.y, pipeline.h_val, pipeline.y_val, C, CONFIG, threads=1, seed=0
    )
    return pipeline


def tasks(data: bytes, folder: Path) -> None:
    raw, student, fused, solved = split(data, 4)
    task: Any = pb.Task()
    with suppress(DecodeError):
        task.ParseFromString(raw)
    blobs = dict(zip((b"\1" * 32, b"\2" * 32, b"\3" * 32), (student, fused, solved), strict=True))
    # The digests of the task's inputs are made true: a lie about them ends before anything is computed.
    by_digest = {}
    for reference in task.inputs:
        if reference.sha256 in blobs:
            blob = blobs[reference.sha256]
            reference.CopyFrom(_reference(reference.name, blob))
            by_digest[reference.sha256] = blob
    accepted = pb.SubmitResponse(receipt="ok").SerializeToString()
    names = (
        "SubmitStudent", "SubmitResiduals", "SubmitMoments", "SubmitGradient", "SubmitVotes", "FinishTask",
    )  # fmt: skip
    transport = Scripted(dict.fromkeys(names, accepted), by_digest)
    session = Session(transport, "a", patience_s=0.0)
    run: Any = SimpleNamespace(max_chunk_bytes=1 << 20)
    runner = TaskRunner(session, Transfer(session, run, BlobStore(folder)), site(), lambda *_: None)
    try:
        runner.run(task)
    except FkdError:
        session.report_failure(task.key, "it could not be done")
    if runner.personal is not None:
        scores = runner.personal.scores(runner.personal.chosen, site().h_val)
        demand(scores.shape == (N - 8, C), "a personal model scores every class")


def _reference(name: str, blob: bytes) -> types.ArtifactRef:
    return types.ArtifactRef(name=name, sha256=hashlib.sha256(blob).digest(), size=len(blob))


def task_seeds(folder: Path) -> dict[str, bytes]:
    student = encode(initial_student(0, D, CONFIG.hidden, C, CONFIG.norm))
    fused = encode({"fused_residuals": np.eye(M, C, dtype=np.float32)})
    solved = encode({f"V.{i}": np.zeros((2 + D + 1, C), np.float32) for i in range(2)})
    at_start = encode({f"V.{i}": np.zeros((D + 1, C), np.float32) for i in range(2)})
    solution = encode({"V": np.zeros((2 + D + 1, C), np.float32)})
    corrections = ("student", "fused_residuals", "moment_correction")
    refined = ("student", "refined_moments", "moment_correction")
    phases = ("student", "residuals", "moments", "votes", "personal")
    return {
        **{name: _seed(name, corrections, (student, fused, solved)) for name in phases},
        "refine_1": _seed("refine_1", ("student", "", "solution"), (student, b"", solution)),
        "votes-refined": _seed("votes", refined, (student, solution, solved)),
        "moments-at-start": _seed("moments", (), (b"", b"", b""), round_number=0),
        "votes-at-start": _seed("votes", ("", "", "moment_correction"), (b"", b"", at_start), round_number=0),
    }


def _seed(phase: str, names: tuple[str, ...], blobs: tuple[bytes, ...], round_number: int = 1) -> bytes:
    """A task with inputs of these names; an empty name is no input."""
    number = types.Phase.Value(f"PHASE_{phase.upper()}")
    key = types.TaskKey(run_id="run-1", round=round_number, phase=number)  # type: ignore[arg-type]
    inputs = [
        types.ArtifactRef(name=name, sha256=bytes([number]) * 32, size=1)
        for number, name in enumerate(names, 1)
        if name
    ]
    task = pb.Task(
        key=key, inputs=inputs, anchor_lambda=10.0, published="anchors", best_moments="moments.0", deadline_s=9.0
    )  # fmt: skip
    return join(task.SerializeToString(), *blobs)


def mutate_task(data: bytes, max_size: int, seed: int) -> bytes:
    """Change one field of the task, or one value or shape of one of its inputs."""
    rng = random.Random(seed)
    parts = split(data, 4)
    at = rng.randrange(4)
    if at == 0:
        task = pb.Task()
        with suppress(DecodeError):
            task.ParseFromString(parts[0])
        change_field(task, rng)
        parts[0] = task.SerializeToString()
    else:
        parts[at] = _mutated_tensors(parts[at], rng)
    return join(*parts)[:max_size]


def _mutated_tensors(blob: bytes, rng: random.Random) -> bytes:
    try:
        tensors: Tensors = {name: np.array(array) for name, array in decode(blob).items()}
    except FkdError:
        return blob
    if not tensors:
        return blob
    name = rng.choice(sorted(tensors))
    choice, array = rng.random(), tensors[name]
    if choice < 0.2:
        tensors[rng.choice(("student", "V.2", "V.0", name + "x"))] = tensors.pop(name)
    elif choice < 0.4:
        tensors[name] = array.astype(rng.choice(("float64", "float16", "int64", "uint8", "bool")))
    elif choice < 0.6:
        tensors[name] = array.T if rng.random() < 0.5 else array[..., :0] if array.ndim else array
    elif array.size and array.dtype.kind == "f":
        value = rng.choice((0.0, -1.0, 1e30, 3e38, 1e-40, float("nan"), float("inf")))
        array.flat[rng.randrange(array.size)] = value
    return encode(tensors)


TARGETS = (Target("tasks", tasks, task_seeds, mutate_task),)
