"""No message a client sends has room for images, labels, trees or personal weights: every field has a purpose here.

A field that is new and can hold much (bytes, text, a list) fails these tests until its purpose is written down, and
docs/privacy.md says what it reveals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fkd_common.choices import Norm
from fkd_common.config import RunConfig
from fkd_common.errors import InvalidUploadError
from fkd_common.ledger import PHASE_NAMES
from fkd_common.pb import coordinator_pb2, enrolment_pb2, types_pb2
from fkd_common.secure_sum.roster import KEYS_SCHEMA, REVEALED_SHARE, SEALED_SHARES
from fkd_server.validation import UploadRules

SPACIOUS = (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING)

PURPOSES = {
    "RegisterRequest.client_name": "the site's id, 1 to 64 characters",
    "TaskKey.run_id": "which run; compared with the coordinator's",
    "NextTaskRequest.session": "16 random bytes from the coordinator",
    "HeartbeatRequest.session": "16 random bytes from the coordinator",
    "HeartbeatRequest.activity": "what the site is at, 100 characters are kept",
    "GetChunkRequest.session": "16 random bytes from the coordinator",
    "GetChunkRequest.sha256": "digest of an artifact of the coordinator",
    "PutChunkRequest.session": "16 random bytes from the coordinator",
    "PutChunkRequest.sha256": "digest of an upload",
    "PutChunkRequest.data": "part of an upload: tensors of the schemas below",
    "Upload.sha256": "digest of an upload",
    "Upload.inline": "a small upload: tensors of the schemas below",
    "SubmitStudentRequest.session": "16 random bytes from the coordinator",
    "SubmitResidualsRequest.session": "16 random bytes from the coordinator",
    "SubmitResidualsRequest.class_counts": "n_{k,c}, with fusion = class_aware alone; else refused",
    "SubmitMomentsRequest.session": "16 random bytes from the coordinator",
    "SubmitGradientRequest.session": "16 random bytes from the coordinator",
    "SubmitExchangeRequest.session": "16 random bytes from the coordinator",
    "SubmitSecureRequest.session": "16 random bytes from the coordinator",
    "SubmitVotesRequest.session": "16 random bytes from the coordinator",
    "SubmitVotesRequest.votes": "one count per candidate model; others are refused",
    "Vote.candidate": "name of a candidate model; others are refused",
    "FinishTaskRequest.session": "16 random bytes from the coordinator",
    "ReportFailureRequest.session": "16 random bytes from the coordinator",
    "ReportFailureRequest.detail": "why a task failed, 500 characters are kept",
    "LeaveRequest.session": "16 random bytes from the coordinator",
    "LeaveRequest.reason": "kind of the error, 100 characters are kept",
    "JoinRequest.secret": "32 random bytes of a join token",
    "JoinRequest.signing_request": "a public key and a signature, before any data are read",
}

TENSORS = {
    r"layers\.\d+\.linear\.(weight|bias)": "student: the model itself",
    r"layers\.\d+\.norm\.(weight|bias|running_mean|running_var|num_batches_tracked)": "student: normalisation",
    r"output\.(weight|bias)": "student: the model itself",
    r"residuals": "predictions on the coordinator's own anchors, not on the site's images",
    r"A": "a sum over all training samples",
    r"B": "a sum over all training samples",
    r"G": "a sum over all training samples",
}


def reachable(message: Descriptor, seen: set[str]) -> Iterator[FieldDescriptor]:
    """Every field of a message and of the messages in it."""
    if message.full_name in seen:
        return
    seen.add(message.full_name)
    for field in message.fields:
        yield field
        if field.message_type is not None:
            yield from reachable(field.message_type, seen)


def sent_by_clients() -> set[str]:
    """Names of all fields of client requests that can hold much: bytes, text, lists."""
    seen: set[str] = set()
    names = set()
    for file in (coordinator_pb2, enrolment_pb2):
        for service in file.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                for field in reachable(method.input_type, seen):
                    if field.type in SPACIOUS or field.is_repeated:
                        names.add(f"{field.containing_type.name}.{field.name}")
    return names


def test_every_spacious_field_of_a_clients_request_has_a_stated_purpose() -> None:
    assert sent_by_clients() == PURPOSES.keys()


def every_schema() -> Iterator[tuple[UploadRules, str]]:
    for norm in Norm:
        rules = UploadRules(RunConfig(norm=norm), 10, 500, 512, 1409)
        for phase in PHASE_NAMES:
            for block_known in (False, True):
                try:
                    yield from ((rules, name) for name in rules.schema(phase, block_known=block_known))
                except InvalidUploadError:
                    continue


def test_every_accepted_tensor_has_a_stated_purpose() -> None:
    names = {name for _, name in every_schema()}
    unexplained = {name for name in names if not any(re.fullmatch(known, name) for known in TENSORS)}
    assert unexplained == set()
    assert all(any(re.fullmatch(known, name) for name in names) for known in TENSORS)


def test_no_accepted_tensor_has_a_dimension_of_the_sites_data() -> None:
    """A schema follows from the run's configuration, classes, anchors and features: nothing of it is a site's."""
    known = set(UploadRules.__dataclass_fields__)
    assert known == {"config", "num_classes", "num_anchors", "embedding_dim", "num_moment_features"}
    with pytest.raises(InvalidUploadError, match="no tensors"):
        UploadRules(RunConfig(), 10, 500, 512, 1409).schema(types_pb2.PHASE_PERSONAL, block_known=False)


def test_secure_sums_add_keys_and_shares_of_fixed_small_size() -> None:
    """The masked tensors themselves have the names and shapes above."""
    assert set(KEYS_SCHEMA) == {"mask_key", "seal_key", "seed_digest"}
    assert max(spec.num_bytes for spec in (*KEYS_SCHEMA.values(), SEALED_SHARES, REVEALED_SHARE)) <= 128


def test_what_each_upload_reveals_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    for message in coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"].methods:
        assert f"`{message.name}`" in page, f"docs/privacy.md does not say what {message.name} reveals"
