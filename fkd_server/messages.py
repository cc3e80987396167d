"""The coordinator's answers as protobuf messages; translation only."""

from __future__ import annotations

from typing import Any, cast

from google.protobuf.message import Message

from fkd_common.artifacts import Artifact, sha256_hex
from fkd_common.errors import InvalidUploadError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_server.run_state import AssignedTask, MustWait, Receipt, RunOver

RETRY_AFTER_S = 0.2
"""Pause after a poll that was held as long as the client asked."""


def next_task_response(
    answer: AssignedTask | MustWait | RunOver, run_id: str, config_sha256: str
) -> pb.NextTaskResponse:
    """A task, a reason to wait, or the end of the run."""
    if isinstance(answer, MustWait):
        return pb.NextTaskResponse(wait=pb.Wait(retry_after_s=RETRY_AFTER_S, reason=answer.reason))
    if isinstance(answer, RunOver):
        return pb.NextTaskResponse(finished=finished(answer))
    content = answer.content
    task = pb.Task(
        key=types.TaskKey(run_id=run_id, round=answer.key.round, phase=cast(Any, answer.key.phase)),
        deadline_s=answer.deadline_s,
        inputs=[artifact_ref(name, item) for name, item in content.inputs.items()],
        anchor_lambda=content.anchor_lambda,
        moment_lambdas=content.moment_lambdas,
        embedding_block_known=content.embedding_block_known,
        published=content.published,
        best_moments=content.best_moments,
        config_sha256=config_sha256,
        delivered=content.delivered,
    )
    return pb.NextTaskResponse(task=task)


def artifact_ref(name: str, artifact: Artifact) -> types.ArtifactRef:
    """An artifact as a message."""
    return types.ArtifactRef(name=name, sha256=bytes.fromhex(artifact.sha256), size=artifact.size)


def finished(outcome: RunOver) -> pb.Finished:
    """The end of the run as a message."""
    return pb.Finished(completed=outcome.completed, detail=outcome.detail)


def submit_response(receipt: Receipt) -> pb.SubmitResponse:
    """A receipt as a message."""
    return pb.SubmitResponse(duplicate=receipt.duplicate, receipt=receipt.digest)


def submission_digest(request: Message) -> str:
    """What makes two submissions without a blob the same: their content, not their session."""
    copy = type(request)()
    copy.CopyFrom(request)
    copy.ClearField("session")
    return sha256_hex(copy.SerializeToString(deterministic=True))


def sha256_of(message: Any) -> str:
    """The hex digest a message carries.

    Raises:
        InvalidUploadError: It is not 32 bytes long.
    """
    if len(message.sha256) != 32:
        raise InvalidUploadError(
            f"expected a SHA-256 of 32 bytes, got {len(message.sha256)}", reason="MALFORMED"
        )
    return str(message.sha256.hex())
