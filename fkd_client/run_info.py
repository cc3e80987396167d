"""What a coordinator says about its run, checked before anything relies on it; makes no calls, touches no files."""

from __future__ import annotations

import json
from dataclasses import dataclass

from fkd_common.config import RunConfig
from fkd_common.errors import DataError, InvalidUploadError, RefusedError
from fkd_common.identifiers import check_run_id
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_CHUNK_BYTES, MAX_POLL_S
from fkd_shards.arrays import checked_classes

ARTIFACTS = ("extractor", "anchors")
"""What every site of a run needs before its first task."""

_DIGEST_BYTES = 32


@dataclass(frozen=True)
class RunInfo:
    """What registration told about the run."""

    run_id: str
    config: RunConfig
    classes: tuple[str, ...]
    artifacts: dict[str, types.ArtifactRef]
    max_chunk_bytes: int


def run_info(told: pb.RegisterResponse) -> RunInfo:
    """The run a coordinator describes.

    Raises:
        RefusedError: The description is not consistent or not understood; nothing of it was used.
    """
    config = _config(told)
    try:
        # The run's name becomes a folder's: a coordinator must not choose where.
        run_id = check_run_id(told.run_id)
        classes = checked_classes(told.classes, "the coordinator")
    except (InvalidUploadError, DataError) as error:
        raise RefusedError(f"the coordinator's description of the run is refused: {error}") from error
    artifacts = {reference.name: reference for reference in told.artifacts}
    for name in ARTIFACTS:
        if name not in artifacts or len(artifacts[name].sha256) != _DIGEST_BYTES:
            raise RefusedError(f"the coordinator does not say which {name} its run has, by its SHA-256")
    if told.max_chunk_bytes == 0:
        raise RefusedError("the coordinator takes chunks of 0 bytes; expected at least 1")
    return RunInfo(run_id, config, classes, artifacts, min(told.max_chunk_bytes, MAX_CHUNK_BYTES))


def _config(told: pb.RegisterResponse) -> RunConfig:
    try:
        keys = json.loads(told.config_json)
        if not isinstance(keys, dict):
            raise ValueError(f"a JSON object expected, got {type(keys).__name__}")
        config = RunConfig(**keys)
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"the coordinator's run configuration is not understood: {error}") from error
    if config.sha256() != told.config_sha256:
        raise RefusedError(
            "the coordinator's run configuration does not match its hash: install the same fkd release on both"
        )
    return config


def pause_s(told: pb.Wait) -> float:
    """Seconds until the next poll: what the coordinator asks for, within what a long poll may take."""
    asked: float = told.retry_after_s
    return min(asked, MAX_POLL_S) if asked >= 0 else 0.0  # also for NaN
