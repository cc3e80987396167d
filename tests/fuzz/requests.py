"""The coordinator's side: sequences of requests, mutated field by field, against a run of two clients."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from fkd_common.errors import FkdError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import METHODS, PROTOCOL_VERSION
from fkd_common.tensors import check_schema, decode, encode
from fkd_server.method.federated_method import TensorUpload
from fkd_server.validation import UploadRules
from tests.secure_sum.secure_sites import SecureSite
from tests.server.tiny import TinyRun, filled, inline, tiny_run

from .framing import join_all, split_all
from .target import Target, WrongError, demand

NAMES = tuple(METHODS)
MAX_CALLS = 8

OWN_SESSION, TRUE_DIGEST = 1, 2
"""Flags of a call: put in the sender's session; put in the digest and size its upload really has."""

CHANGES: dict[str, Any] = {
    "rounds": 2, "correction": ("anchors", "moments"), "residual_every": 1, "refine_steps": 1,
}  # fmt: skip
"""A run whose rounds have every phase."""
ZERO_RESIDUALS = encode({"residuals": np.zeros((4, 2), np.float32)})
CANDIDATES = ("student", "anchors", "moments.0", "moments.1", "moments.refined")
STUDENT = types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_STUDENT)
INTERESTING = (0, 1, 2, 3, 10, 127, 2**16, 10**9, 10**12, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"))
TEXTS = ("", "a", "b", "student", "anchors", "run-1", "../run-1", "x" * 500, "\x00", "‮", "[red]", "moments.0")


class Honest(SecureSite):
    """A client that does every task."""

    def do(self, run: TinyRun) -> int | None:
        told = self.poll()
        if not told.HasField("task") or told.task.key.phase != types.PHASE_RESIDUALS:
            return super().do(run)
        self.call("SubmitResiduals", key=told.task.key, upload=inline(ZERO_RESIDUALS), num_samples=self.n)
        return types.PHASE_RESIDUALS


def requests(data: bytes, folder: Path) -> None:
    """Calls of client a, in turn; each begins with the method's name, a line feed and the flags above.

    Client b does its tasks, so that the run goes on as far as client a lets it.
    """
    run = tiny_run(folder, **CHANGES)
    a, b = run.site("a"), Honest("b", run.answer, filled(run.method, 1.0), 10, 0.5)
    a.poll()
    b.poll()
    rules = UploadRules.of(run.method)
    for call in split_all(data, MAX_CALLS):
        name, flags, message = parsed(call)
        method = METHODS[name]
        raw = _completed(method.request_type, message, flags, a.session)
        before = run.service.ledger.total()
        with suppress(FkdError):
            answer = run.answer(method, raw)
            told = method.response_type.FromString(answer)
            demand(len(answer) <= (1 << 20) + 4096, "an answer is bounded")
            if method.name == "Register":
                a.session = told.session  # type: ignore[attr-defined]
        after = run.service.ledger.total()
        demand(after.calls - before.calls == 1, "every call is booked once")
        demand(after.message_up - before.message_up == len(raw), "every byte is booked")
        _check_accepted(run, rules)
        with suppress(FkdError):
            b.do(run)
    run.clock.now += 1.0
    run.service.tick()


def parsed(call: bytes) -> tuple[str, int, bytes]:
    """Method, flags and message of a call; a name that is none stands for any."""
    line, _, rest = call.partition(b"\n")
    name = line.decode(errors="replace")
    return name if name in METHODS else NAMES[sum(line) % len(NAMES)], rest[0] if rest else 0, rest[1:]


def written(name: str, flags: int, message: bytes) -> bytes:
    """The inverse of :func:`parsed`."""
    return name.encode() + b"\n" + bytes([flags]) + message


def _completed(kind: type[Message], raw: bytes, flags: int, session: bytes) -> bytes:
    """The request with what the sender would know: its session, its upload's true digest."""
    request: Any = kind()
    try:
        request.ParseFromString(raw)
    except DecodeError:
        return raw
    fields = request.DESCRIPTOR.fields_by_name
    if flags & OWN_SESSION and "session" in fields:
        request.session = session
    if flags & TRUE_DIGEST and "upload" in fields and request.upload.inline:
        request.upload.CopyFrom(inline(request.upload.inline))
    if flags & TRUE_DIGEST and kind is pb.PutChunkRequest:
        request.sha256, request.size = hashlib.sha256(request.data).digest(), len(request.data)
    whole: bytes = request.SerializeToString()
    return whole


def _check_accepted(run: TinyRun, rules: UploadRules) -> None:
    """Whatever counts has the phase's form and finite values, read back from disk."""
    if run.coordinator.open is None:
        return
    phase = run.coordinator.open.key.phase
    for content in run.coordinator.open.uploads.values():
        if isinstance(content, TensorUpload):
            blob = (run.uploads / f"{content.artifact.sha256}.safetensors").read_bytes()
            demand(0 <= content.num_samples <= run.coordinator.config.max_samples, "n_k counts samples")
            demand(0.0 <= content.reliability <= 1.0, "r_k lies in [0, 1]")
            try:
                check_schema(decode(blob), rules.schema(phase, block_known=run.coordinator.round > 1))
            except FkdError as error:
                raise WrongError(f"an upload counts that must not: {error}") from error


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Change one field of one call, or the order of the calls."""
    rng = random.Random(seed)
    calls = split_all(data, MAX_CALLS)
    if not calls:
        return join_all([written(rng.choice(NAMES), 3, b"")])
    at = rng.randrange(len(calls))
    choice = rng.random()
    if choice < 0.1:
        calls.insert(rng.randrange(len(calls) + 1), calls[at])
    elif choice < 0.15 and len(calls) > 1:
        del calls[at]
    elif choice < 0.2:
        name = rng.choice((*NAMES, parsed(calls[at])[0]))
        calls[at] = written(name, rng.randrange(4), parsed(calls[at])[2])
    else:
        name, flags, message = parsed(calls[at])
        calls[at] = written(name, flags, _mutated(name, message, rng))
    return join_all(calls)[:max_size]


def _mutated(name: str, message: bytes, rng: random.Random) -> bytes:
    request = METHODS[name].request_type()
    try:
        request.ParseFromString(message)
    except DecodeError:
        return message
    change_field(request, rng)
    return request.SerializeToString()


def change_field(message: Message, rng: random.Random) -> None:
    """Give one field of a message, or of a message in it, another value of its type."""
    fields = message.DESCRIPTOR.fields
    if not fields:
        return
    field = rng.choice(fields)
    value: Any = getattr(message, field.name)
    if field.is_repeated:
        if len(value) and rng.random() < 0.3:
            del value[rng.randrange(len(value))]
        elif field.message_type:
            change_field(value.add(), rng)
        else:
            value.append(_value(field, 0, rng))
    elif field.message_type:
        if rng.random() < 0.1:
            message.ClearField(field.name)
        else:
            change_field(value, rng)
    else:
        with suppress(ValueError, UnicodeEncodeError):  # an unnamed number of a closed enum
            setattr(message, field.name, _value(field, value, rng))


def _value(field: FieldDescriptor, old: Any, rng: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return rng.choice((*FLOATS, rng.gauss(0, 1)))
    if kind != FieldDescriptor.CPPTYPE_STRING:
        top = 64 if kind in (FieldDescriptor.CPPTYPE_UINT64, FieldDescriptor.CPPTYPE_INT64) else 31
        return rng.choice((*INTERESTING, rng.randrange(10))) % 2**top
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(TEXTS)
    changed = bytearray(old or b"")
    if not changed or rng.random() < 0.2:
        return rng.randbytes(rng.choice((0, 1, 16, 31, 32, 33, 600)))
    at = rng.randrange(len(changed))
    if rng.random() < 0.4:
        number = rng.choice(FLOATS) if rng.random() < 0.5 else rng.gauss(0, 1e6)
        with np.errstate(over="ignore"):
            changed[at : at + 4] = np.array(number, "<f4").tobytes()
    elif rng.random() < 0.3:
        del changed[at:]
    else:
        changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed)


def request_seeds(folder: Path) -> dict[str, bytes]:
    """One valid call of every method, and a whole round."""
    run = tiny_run(folder / "seed", **CHANGES)
    site = SecureSite("a", run.answer, filled(run.method, 0.5), 10, 0.5)
    blob = encode(site.student)
    student = pb.SubmitStudentRequest(key=STUDENT, upload=inline(blob), num_samples=10, reliability=0.5)
    residuals_key = types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_RESIDUALS)
    messages: dict[str, Message] = {
        "Register": pb.RegisterRequest(protocol_version=PROTOCOL_VERSION, client_name="a"),
        "NextTask": pb.NextTaskRequest(wait_s=0.0),
        "Heartbeat": pb.HeartbeatRequest(key=STUDENT, progress=0.5, activity="teacher"),
        "GetChunk": pb.GetChunkRequest(
            key=STUDENT, sha256=bytes.fromhex(run.method.artifacts()["student"].sha256), length=64
        ),
        "PutChunk": pb.PutChunkRequest(
            key=STUDENT, sha256=hashlib.sha256(blob).digest(), size=len(blob), data=blob
        ),
        "SubmitStudent": student,
        "SubmitResiduals": pb.SubmitResidualsRequest(
            key=residuals_key, upload=inline(ZERO_RESIDUALS), num_samples=10
        ),
        "SubmitMoments": pb.SubmitMomentsRequest(
            key=types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_MOMENTS),
            upload=inline(encode(site.moments())),
            num_samples=10,
        ),
        "SubmitGradient": pb.SubmitGradientRequest(
            key=types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_REFINE_1),
            upload=inline(encode(site.gradient(np.zeros((6, 2))))),
            num_samples=10,
        ),
        "SubmitExchange": pb.SubmitExchangeRequest(
            key=types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_EXCHANGE),
            upload=inline(ZERO_RESIDUALS),
            num_samples=10,
        ),
        "SubmitVotes": pb.SubmitVotesRequest(
            key=types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_VOTES),
            votes=[pb.Vote(candidate=name, correct=2) for name in CANDIDATES], num_validation=3,
        ),
        "SubmitSecure": pb.SubmitSecureRequest(
            key=types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_STUDENT_KEYS),
            upload=inline(encode({"mask_key": np.ones(32, np.uint8)})),
        ),
        "FinishTask": pb.FinishTaskRequest(key=STUDENT),
        "ReportFailure": pb.ReportFailureRequest(key=STUDENT, detail="no memory"),
        "Leave": pb.LeaveRequest(reason="BAD_DATA"),
    }  # fmt: skip
    both = OWN_SESSION | TRUE_DIGEST
    calls = {name: written(name, both, message.SerializeToString()) for name, message in messages.items()}
    single = {name: join_all([call]) for name, call in calls.items()}
    by_reference = pb.SubmitStudentRequest(key=STUDENT, num_samples=10, reliability=0.5)
    by_reference.upload.sha256, by_reference.upload.size = hashlib.sha256(blob).digest(), len(blob)
    chunked = written("SubmitStudent", OWN_SESSION, by_reference.SerializeToString())
    order = (
        "NextTask",
        "GetChunk",
        "SubmitStudent",
        "NextTask",
        "SubmitResiduals",
        "SubmitMoments",
        "SubmitGradient",
        "SubmitVotes",
    )
    return {
        **single,
        "round": join_all([calls[name] for name in order]),
        "chunked": join_all([calls["PutChunk"], chunked]),
    }


TARGETS = (Target("requests", requests, request_seeds, mutate),)
