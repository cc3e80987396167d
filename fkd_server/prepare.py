"""Makes what a run serves: the extractor artifact, and the anchors with their embeddings; the one-off torch work.

Runs as a process of its own (``fkd-server prepare``), so that the coordinator never imports torch. A
coordinator on a machine without torch serves a folder prepared elsewhere.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from fkd_common.artifacts import Artifact, BlobStore, write_atomically
from fkd_common.errors import DataError, ExitCode, FkdError, UsageError
from fkd_common.given_path import given_path
from fkd_common.logs import LogFormat, configure_logs
from fkd_common.program import OneSentenceParser
from fkd_common.tensors import Tensors, decode, encode, metadata_of

CLASSES_KEY = "fkd.classes"
EXTRACTOR_FILE = "extractor.safetensors"
ANCHORS_FILE = "anchors.safetensors"


@dataclass(frozen=True)
class PreparedRun:
    """What a coordinator serves, read from a prepared folder."""

    extractor: Artifact
    anchors: Artifact
    anchor_embeddings: NDArray[np.float32]
    """(m, d)"""
    classes: tuple[str, ...]


def main(arguments: list[str]) -> int:
    """Entry point of the subcommand; returns the exit code."""
    parser = OneSentenceParser(
        prog="fkd-server prepare",
        description="Build the extractor artifact and embed the anchors (needs torch), for --prepared.",
    )
    parser.add_argument("--extractor", default="resnet18", help="resnet18, pretrain, or a .safetensors file")
    parser.add_argument("--anchors", type=given_path, required=True, help="anchor shard folder")
    parser.add_argument(
        "--public", type=given_path, default=Path("shards/public"), help="labelled public shard for pretrain"
    )
    parser.add_argument("--out", type=given_path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    given = parser.parse_args(arguments)
    configure_logs(LogFormat.AUTO)
    _check_out(given.out)
    prepare(given.extractor, given.anchors, given.public, given.out, given.seed, given.threads)
    structlog.get_logger().info(
        "prepared", folder=str(given.out), serve_with=f"fkd-server --prepared {given.out}"
    )
    return ExitCode.OK


def _check_out(out: Path) -> None:
    """Notice a folder that cannot be written before the minutes of work for it.

    Raises:
        UsageError: It cannot be made, or nothing can be written there.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise UsageError(
            f"--out {out}: expected a folder to write to, got: {error.strerror or error}"
        ) from error


def prepare(extractor: str, anchors: Path, public: Path, out: Path, seed: int, threads: int) -> None:
    """Build and write both artifacts; needs torch.

    Raises:
        DataError: A folder or weight file is missing or unusable.
    """
    from fkd_client.threads import limit_threads

    limit_threads(threads)
    from fkd_client.embedding import embed
    from fkd_client.extractor import extractor_artifact, load_extractor
    from fkd_client.pretrain import pretrain_extractor
    from fkd_shards.shard import read_shard

    log = structlog.get_logger()
    anchor_shard = read_shard(anchors)
    if not anchor_shard.classes:
        raise DataError(f"{anchors} names no classes: make anchors with `fkd-shards create`")

    def progress(fraction: float, activity: str) -> None:
        log.info("preparing", activity=activity, percent=round(100 * fraction))

    if extractor == "pretrain":
        shard = read_shard(public)
        if shard.labels is None:
            raise DataError(
                f"{public} has no labels: pretraining needs a labelled public set (fkd-shards create --public N)"
            )
        blob = pretrain_extractor(np.asarray(shard.images), shard.labels, seed=seed, progress=progress)
    else:
        blob = extractor_artifact(extractor)
    images = np.asarray(anchor_shard.images)
    embeddings = embed(load_extractor(blob), images, device="cpu", progress=progress)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / EXTRACTOR_FILE, blob)
    tensors: Tensors = {"images": images, "embeddings": embeddings.astype(np.float32)}
    write_atomically(out / ANCHORS_FILE, encode(tensors, {CLASSES_KEY: json.dumps(anchor_shard.classes)}))


class Preparation:
    """A preparation at work: other threads ask how far it is, and can end it."""

    def __init__(self) -> None:
        self.activity = ""
        """For a person: what is being done, and how far it is."""
        self._cancelled = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._on_cancel: Callable[[], None] = lambda: None

    @property
    def cancelled(self) -> bool:
        """Whether it is to end."""
        return self._cancelled.is_set()

    def on_cancel(self, end: Callable[[], None]) -> None:
        """What ends the wait that is at work now."""
        self._on_cancel = end
        if self.cancelled:
            end()

    def cancel(self) -> None:
        """End the child, or let it end as soon as it starts."""
        self._cancelled.set()
        self._on_cancel()
        if self._child is not None:
            self._child.terminate()

    def watch(self, child: subprocess.Popen[str]) -> None:
        """Name the child to end when asked."""
        self._child = child
        if self._cancelled.is_set():
            child.terminate()

    def pass_on(self, line: str) -> None:
        """Log what the child says as the coordinator's own words, in the format asked for."""
        try:
            event = json.loads(line)
            name, level = event.pop("event"), event.pop("level", "info")
        except (ValueError, AttributeError, KeyError):
            sys.stderr.write(line)  # a library's
            return
        event.pop("timestamp", None)
        if name == "preparing":
            self.activity = f"{event['activity']}, {event['percent']} %"
        log = structlog.get_logger()
        (log.warning if level == "warning" else log.info)(name, **event)


def prepare_in_child(
    extractor: str, anchors: Path, public: Path, out: Path, seed: int, threads: int, preparation: Preparation
) -> None:
    """Run :func:`prepare` in a process of its own, its log lines passing through `preparation`.

    Raises:
        DataError: It failed; the message is the child's.
    """
    if importlib.util.find_spec("torch") is None:
        raise DataError(
            "this machine has no torch to prepare extractor and anchors: install fkd[client], or run "
            "`fkd-server prepare` on one that has it and start with --prepared FOLDER"
        )
    arguments = {
        "extractor": extractor, "anchors": anchors, "public": public, "out": out, "seed": seed, "threads": threads,
    }  # fmt: skip
    command = [sys.executable, "-m", "fkd_server.cli", "prepare"]
    for name, value in arguments.items():
        command += [f"--{name}", str(value)]
    failure = ""
    # A group of its own: Ctrl-C is for the coordinator, which ends the child.
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, process_group=0) as child:
        preparation.watch(child)
        assert child.stderr is not None
        for line in child.stderr:
            if "error: " in line:
                failure = line.split("error: ", 1)[1].strip()
            else:
                preparation.pass_on(line)
    if child.returncode:
        error = DataError(failure or f"preparation ended with status {child.returncode}")
        error.exit_code = (
            ExitCode(child.returncode) if child.returncode in set(ExitCode) else ExitCode.FAILURE
        )
        raise error


def load_prepared(folder: Path, blobs: BlobStore) -> PreparedRun:
    """Read a prepared folder into the blob store.

    Raises:
        DataError: Files are missing or not what they should be.
    """
    try:
        extractor, anchors = blobs.adopt(folder / EXTRACTOR_FILE), (folder / ANCHORS_FILE).read_bytes()
        tensors = decode(anchors)
        classes = tuple(str(name) for name in json.loads(metadata_of(anchors)[CLASSES_KEY]))
        embeddings = tensors["embeddings"]
    except (OSError, KeyError, ValueError, TypeError, FkdError) as error:
        raise DataError(f"{folder} is not a folder made by `fkd-server prepare`: {error}") from error
    if embeddings.ndim != 2 or embeddings.dtype != np.float32 or len(embeddings) < 2 or len(classes) < 2:
        raise DataError(
            f"{folder / ANCHORS_FILE}: expected at least 2 float32 embeddings and 2 classes, "
            f"got {embeddings.dtype} {embeddings.shape} and {len(classes)} classes"
        )
    return PreparedRun(extractor, blobs.put(anchors), embeddings, classes)
