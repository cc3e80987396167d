"""What a coordinator may answer a client: the status of a failed call, its description of the run, its chunks."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from fkd_client.run_info import pause_s
from fkd_client.session import Session
from fkd_client.transfer import Transfer
from fkd_common.artifacts import BlobStore
from fkd_common.config import RunConfig
from fkd_common.errors import FkdError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_POLL_S, Method, from_rpc_error

from .framing import join, split
from .target import Target, demand

CONFIG = RunConfig(personal=())
DIGEST = bytes(range(32))


class Scripted:
    """Answers each method with the same bytes, whatever is asked; serves chunks of one blob."""

    def __init__(self, answers: dict[str, bytes], blobs: dict[bytes, bytes]) -> None:
        self._answers, self._blobs = answers, blobs
        self.calls = 0

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        self.calls += 1
        demand(self.calls < 200, "a client does not call for ever")
        if method.name == "GetChunk" and self._blobs:
            asked = pb.GetChunkRequest.FromString(request)
            blob = self._blobs.get(asked.sha256, b"")
            return pb.GetChunkResponse(
                data=blob[asked.offset : asked.offset + asked.length]
            ).SerializeToString()
        return self._answers.get(method.name, b"")

    def close(self) -> None:
        pass


# -- a failed call's status ---------------------------------------------------------------------------


def status(data: bytes, folder: Path) -> None:
    code, text, details = split(data, 3)
    codes = list(grpc.StatusCode)
    number = code[0] if code else 0
    failed = SimpleNamespace(
        code=lambda: codes[number % len(codes)],
        details=lambda: text.decode(errors="replace"),
        trailing_metadata=lambda: (("grpc-status-details-bin", details),),
    )
    error = from_rpc_error(failed)  # type: ignore[arg-type]
    demand(isinstance(error, FkdError), "every failure has a meaning")


def status_seeds(folder: Path) -> dict[str, bytes]:
    detail = any_pb2.Any()
    info = error_details_pb2.ErrorInfo(
        reason="ROUND_CLOSED", domain="fkd.v1", metadata={"kind": "StaleError"}
    )
    detail.Pack(info)
    whole = status_pb2.Status(code=code_pb2.FAILED_PRECONDITION, message="too late", details=[detail])
    trailers = rpc_status.to_status(whole).trailing_metadata[0][1]
    spoilt = status_pb2.Status.FromString(whole.SerializeToString())
    spoilt.details[0].value = b"\xff\xff"
    code = bytes([list(grpc.StatusCode).index(grpc.StatusCode.FAILED_PRECONDITION)])
    return {
        "error_info": join(code, b"too late", trailers),
        "spoilt_detail": join(code, b"too late", spoilt.SerializeToString()),
        "no_status": join(b"\x0e", b"gone", b"\xff\xff\xff"),
    }


# -- registration -------------------------------------------------------------------------------------


def registration(data: bytes, folder: Path) -> None:
    register, configuration, polled = split(data, 3)
    told: Any = pb.RegisterResponse()
    with suppress(DecodeError, UnicodeDecodeError):
        told.ParseFromString(register)
        if configuration:
            told.config_json = configuration.decode()
            with suppress(ValueError, TypeError, RecursionError):
                told.config_sha256 = RunConfig.model_validate_json(configuration).sha256()
        register = told.SerializeToString()
    answers = dict.fromkeys(("NextTask", "Heartbeat", "Leave", "PutChunk", "SubmitStudent"), polled)
    session = Session(Scripted({"Register": register, **answers}, {}), "a", patience_s=0.0)
    try:
        run = session.register()
        demand("/" not in run.run_id and run.run_id != "..", "a run's id cannot leave its folder")
        demand(0 < run.max_chunk_bytes <= 1 << 20, "chunks have a size")
        transfer = Transfer(session, run, BlobStore(folder / "cache"))
        with suppress(FkdError):
            answer = session.next_task()
            demand(0.0 <= pause_s(answer.wait) <= MAX_POLL_S, "a pause is bounded")
        with suppress(FkdError):
            transfer.fetch_kept(run.artifacts["extractor"], types.TaskKey(run_id=run.run_id))
    finally:
        session.close(notify=False)


def registration_seeds(folder: Path) -> dict[str, bytes]:
    told = pb.RegisterResponse(
        session=bytes(16), run_id="run-1", classes=["cat", "dog"], max_chunk_bytes=1 << 20,
        artifacts=[types.ArtifactRef(name=name, sha256=DIGEST, size=9) for name in ("extractor", "anchors")],
    ).SerializeToString()  # fmt: skip
    configuration = CONFIG.canonical_json().encode()
    wait = pb.NextTaskResponse(wait=pb.Wait(retry_after_s=float("nan"), reason="others")).SerializeToString()
    no_object = pb.RegisterResponse(config_json="[1]").SerializeToString()
    return {
        "run": join(told, configuration, wait),
        "no_object": join(no_object, b"", b""),
        "garbage": join(b"\xff\xff", b"", b"\xff"),
    }


TARGETS = (
    Target("status", status, status_seeds),
    Target("registration", registration, registration_seeds),
)
