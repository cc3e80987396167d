"""Where an operator takes a published model from: a run's folder, or a coordinator at work; nothing is written."""

from __future__ import annotations

import json
import time
from pathlib import Path

from fkd_common.artifacts import blob_file, sha256_hex
from fkd_common.errors import CorruptTransferError, DataError, InvalidUploadError, StaleError, UsageError
from fkd_common.exported_file import MAX_FILE_BYTES, Candidate, ModelFiles, read_whole
from fkd_common.identifiers import check_run_id
from fkd_common.model_file import decode_model
from fkd_common.pb import admin_pb2 as pb
from fkd_common.places import RUNS, newest_file
from fkd_server.operator.call import Operator
from fkd_server.run_folder import MODEL

_TRIES = 5
"""A model may be replaced while it is fetched; votes are far apart."""
_PAUSE_S = 0.2
"""Between tries: a coordinator writes a model, and knows its hash a moment later."""


def newest_run(runs: Path = RUNS) -> Path:
    """The run whose model was written last.

    Raises:
        UsageError: There is none with a model.
    """
    newest = newest_file(runs, f"*/{MODEL}")
    if newest is None:
        raise UsageError(
            f"no run with a model in {runs.absolute()}: give --run FOLDER, or --server HOST:PORT for a run at work"
        )
    return newest.parent


def from_folder(run: Path, candidate: Candidate) -> ModelFiles:
    """The model in a run's folder.

    Args:
        run: The folder.
        candidate: Whose scores are wanted.

    Raises:
        DataError: The folder has no model (yet), or something in it is damaged or missing.
        UsageError: The model has no such candidate.
    """
    if not (run / MODEL).is_file():
        raise DataError(f"{run} has no {MODEL}: no run's folder, or no vote has been held there yet")
    model = read_whole(run / MODEL)
    named = decode_model(model).header.extractor_sha256
    path = blob_file(run / "blobs", named)
    if not path.is_file():
        raise DataError(
            f"{path} is missing: the model of {run} needs it, bring it back from a copy of the run"
        )
    return ModelFiles.of(_run_id(run), model, read_whole(path), candidate)


def from_coordinator(operator: Operator, candidate: Candidate) -> ModelFiles:
    """The model that a coordinator has published last.

    Raises:
        FkdError: The coordinator does not answer, does not take orders from this caller, or has no model yet.
        CorruptTransferError: What it sent is not what it said.
        UsageError: The model has no such candidate.
    """
    run_id = _name(operator.status().run_id)
    model = _fetched(operator, pb.MODEL_PART_MODEL)
    extractor = _fetched(operator, pb.MODEL_PART_EXTRACTOR)
    return ModelFiles.of(run_id, model, extractor, candidate)


def _fetched(operator: Operator, part: pb.ModelPart) -> bytes:
    for left in reversed(range(_TRIES)):
        try:
            return _fetched_at_once(operator, part)
        except (StaleError, CorruptTransferError):
            if not left:
                raise
            time.sleep(_PAUSE_S)
    raise AssertionError("unreachable")


def _fetched_at_once(operator: Operator, part: pb.ModelPart) -> bytes:
    """A whole file, of one version.

    Raises:
        StaleError: A newer version came meanwhile.
        CorruptTransferError: What came is not what had been said: it was damaged, or is of two versions.
    """
    whole, sha256 = bytearray(), ""
    while True:
        request = pb.ReadModelRequest(part=part, offset=len(whole), sha256=sha256)
        answer: pb.ReadModelResponse = operator.call("ReadModel", request)
        sha256 = sha256 or answer.sha256
        whole += answer.piece
        if answer.size > MAX_FILE_BYTES or len(whole) > answer.size or answer.sha256 != sha256:
            raise CorruptTransferError("the coordinator sent another file than it had announced")
        if len(whole) == answer.size:
            break
        if not answer.piece:
            raise CorruptTransferError(f"the coordinator sent {len(whole)} of {answer.size} bytes")
    blob = bytes(whole)
    if sha256_hex(blob) != sha256:
        raise CorruptTransferError("what the coordinator sent does not match its sha256: try again")
    return blob


def _run_id(run: Path) -> str:
    """The name of the run in a folder: what its summary says, else the folder's, which is the same unless renamed."""
    try:
        told = json.loads((run / "summary.json").read_bytes())["run_id"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        told = None
    return (_name(told) if isinstance(told, str) else "") or _name(run.resolve().name)


def _name(told: str) -> str:
    """What could be a run's name; empty if it could not."""
    try:
        return check_run_id(told)
    except InvalidUploadError:
        return ""
