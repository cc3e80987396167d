"""What clients submit: which phase it answers, whether it is whole, and what it holds; counts nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fkd_common.artifacts import Artifact
from fkd_common.errors import InvalidUploadError, RefusedError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.phases import REFINE_PHASES
from fkd_common.secure_sum.steps import SECURE_STEPS
from fkd_common.tensors import check_schema, chunk_payload, decode
from fkd_server.booked_call import Call
from fkd_server.method.federated_method import (
    FederatedMethod,
    NoUpload,
    SecureUpload,
    TensorUpload,
    UploadContent,
    VoteUpload,
)
from fkd_server.method.personal_scores import PERSONAL_CANDIDATE
from fkd_server.run_state import PhaseKey
from fkd_server.spool import UploadSpool, verified
from fkd_server.store import RunStore
from fkd_server.validation import Background, UploadRules, check_blob_size

SUBMITS: Mapping[str, Collection[int]] = {
    "SubmitStudent": (types.PHASE_STUDENT,),
    "SubmitResiduals": (types.PHASE_RESIDUALS,),
    "SubmitMoments": (types.PHASE_MOMENTS,),
    "SubmitSecure": tuple(SECURE_STEPS),
    "SubmitExchange": (types.PHASE_EXCHANGE,),
    "SubmitGradient": REFINE_PHASES,
    "SubmitVotes": (types.PHASE_VOTES,),
    "FinishTask": (types.PHASE_PERSONAL,),
}
"""Phases that a submission can answer."""

TENSOR_SUBMITS = (
    "SubmitStudent", "SubmitResiduals", "SubmitMoments", "SubmitGradient", "SubmitSecure", "SubmitExchange",
)  # fmt: skip


class Submissions:
    """Reads and checks them, for one run."""

    def __init__(
        self, method: FederatedMethod, rules: UploadRules, store: RunStore, spool: UploadSpool
    ) -> None:
        """Nothing is read yet.

        Args:
            method: Of the run.
            rules: What its uploads must satisfy.
            store: Where those that do are kept.
            spool: Where those that come in chunks wait.
        """
        self._method = method
        self._rules = rules
        self._store = store
        self._spool = spool

    def check_answers(self, name: str, key: PhaseKey, client: str) -> None:
        """Refuse a submission that is none for this phase.

        Raises:
            InvalidUploadError: It is not.
        """
        secure = self._method.secure_schema(key.phase, client) is not None
        if key.phase not in SUBMITS[name] or secure != (name == "SubmitSecure"):
            raise InvalidUploadError(f"{name} does not answer {key}", reason="WRONG_PHASE")

    def content(self, name: str, request: Any, key: PhaseKey, call: Call) -> UploadContent:
        """What a submission holds, if nothing about it is wrong.

        Args:
            name: The call.
            request: Its request.
            key: The task it answers.
            call: The call at work; told the payload.

        Raises:
            FkdError: Something is wrong: what, and what was expected.
        """
        if name == "FinishTask":
            return self._personal_score(request, call)
        if name == "SubmitVotes":
            correct = {vote.candidate: vote.correct for vote in request.votes}
            if len(correct) != len(request.votes):
                raise InvalidUploadError("a candidate was voted for twice", reason="WRONG_NAMES")
            claimed = self._claimed(call.client)
            self._rules.check_votes(correct, request.num_validation, self._method.candidates(), claimed)
            return VoteUpload(correct, request.num_validation)
        if name == "SubmitSecure":
            blob = self._upload(request.upload, key.phase, call)
            check_schema(decode(blob), self._method.secure_schema(key.phase, call.client) or {})
            return SecureUpload(self._stored(request.upload, blob, call.client))
        reliability = request.reliability if name == "SubmitStudent" else 1.0
        counts = tuple(request.class_counts) if name == "SubmitResiduals" else ()
        self._rules.check_counts(request.num_samples, reliability, counts, key.phase)
        self._check_constant(call.client, request.num_samples)
        relay = self._store.is_relay(call.client)
        known = Background.of(
            self._method, key.round, key.phase, call.client, request.num_samples, relay=relay
        )
        blob = self._upload(request.upload, key.phase, call)
        packed = decode(blob)
        tensors = self._rules.unpacked(key.phase, packed, known)
        self._rules.check_tensors(key.phase, tensors, known)
        if tensors is packed:
            stored = self._stored(request.upload, blob, call.client)
        else:
            stored = self._store.uploads.put_tensors(tensors)
        return TensorUpload(stored, request.num_samples, reliability, counts, relay)

    def _personal_score(self, request: pb.FinishTaskRequest, call: Call) -> VoteUpload | NoUpload:
        """How good the site's personal model is, where the run asks for it."""
        if not request.HasField("personal_correct"):
            return NoUpload()
        if not self._method.config.report_personal:
            raise InvalidUploadError("this run does not ask for personal scores", reason="NOT_ASKED")
        correct, claimed = (
            {PERSONAL_CANDIDATE: request.personal_correct},
            self._claimed(call.client),
        )
        self._rules.check_votes(correct, request.num_validation, [PERSONAL_CANDIDATE], claimed)
        return VoteUpload(correct, request.num_validation)

    def _upload(self, upload: types.Upload, phase: int, call: Call) -> bytes | memoryview:
        """An upload's blob, complete and verified."""
        self.check_size(phase, call.client, upload.size)
        blob: bytes | memoryview
        inline = upload.inline
        if not inline:
            blob = self._spool.read(call.client, upload.sha256.hex(), upload.size)
        elif len(inline) == upload.size:
            blob = verified(inline, upload.sha256.hex())
        else:
            raise InvalidUploadError(
                f"{len(inline)} bytes inline, {upload.size} declared", reason="WRONG_SIZE"
            )
        call.payload_up = chunk_payload(blob, 0, len(blob))
        return blob

    def _stored(self, upload: types.Upload, blob: bytes | memoryview, client: str) -> Artifact:
        """A verified blob, durable: the spool's file of what came in chunks is not written again."""
        sha256 = upload.sha256.hex()
        if upload.inline:
            return self._store.uploads.put(blob, sha256)
        return self._store.uploads.link(self._spool.path(client, sha256), sha256)

    def check_size(self, phase: int, client: str, size: int) -> None:
        """Refuse a blob before any of it is held."""
        secure = self._method.secure_schema(phase, client)
        if secure is None:
            self._rules.check_size(phase, size)
        else:
            check_blob_size(size, secure)

    def _claimed(self, client: str) -> int | None:
        """n_k as far as a client has said it, and is held to it: a relay's changes with its clients."""
        return None if self._store.is_relay(client) else self._store.num_samples(client)

    def _check_constant(self, client: str, num_samples: int) -> None:
        """n_k may not change within a run: every weight and moment counts on it."""
        first = self._claimed(client)
        if first not in (None, num_samples):
            raise RefusedError(
                f"n_k was {first} and is now {num_samples}; it may not change", reason="SAMPLES_CHANGED"
            )
