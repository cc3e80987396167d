"""Whatever bytes a registered client sends, it gets an answer or a refusal, and every byte is booked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fkd_common.errors import FkdError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import METHODS
from fkd_common.tensors import encode

from .tiny import TinyRun, filled, inline, tiny_run

UNSIGNED = st.one_of(st.integers(0, 5), st.sampled_from([10**12, 2**63, 2**64 - 1]))
DIGESTS = st.one_of(st.binary(max_size=40), st.just(bytes(32)), st.just(bytes(600)))
KEYS = st.one_of(
    st.just(types.TaskKey(run_id="run-1", round=1, phase=types.PHASE_STUDENT)),
    st.builds(types.TaskKey, run_id=st.just("run-1"), round=st.just(1), phase=st.integers(0, 8)),
    st.builds(
        types.TaskKey,
        run_id=st.sampled_from(["run-1", "", "../run-1", "x" * 500]),
        round=st.sampled_from([0, 1, 2, 2**32 - 1]),
        phase=st.sampled_from([-1, 0, 3, 99, 2**31 - 1]),
    ),
)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def uploads(valid: bytes) -> st.SearchStrategy[types.Upload]:
    inlined = st.one_of(st.binary(max_size=80), st.just(valid), st.just(valid[:-1]))
    return st.one_of(
        st.builds(types.Upload, sha256=DIGESTS, size=UNSIGNED, inline=inlined),
        st.binary(max_size=80).map(inline),
    )


def requests(name: str, session: bytes, valid: bytes) -> st.SearchStrategy[Message]:
    """Messages of the right type whose fields say anything."""
    fields: dict[str, st.SearchStrategy[object]] = {
        "session": st.just(session), "key": KEYS, "upload": uploads(valid), "sha256": DIGESTS,
        "size": UNSIGNED, "offset": UNSIGNED, "data": st.binary(max_size=80), "num_samples": UNSIGNED,
        "reliability": NUMBERS, "wait_s": NUMBERS, "progress": st.floats(width=32),
        "length": st.sampled_from([0, 1, 2**32 - 1]), "class_counts": st.lists(UNSIGNED, max_size=3),
        "num_validation": UNSIGNED, "personal_correct": UNSIGNED,
        "activity": st.text(max_size=200), "detail": st.text(max_size=600),
        "reason": st.text(max_size=200),
        "votes": st.lists(st.builds(pb.Vote, candidate=st.text(max_size=9), correct=UNSIGNED), max_size=3),
        "protocol_version": st.sampled_from([0, 1, 2]), "client_name": st.text(max_size=70),
        "relay": st.booleans(),
    }  # fmt: skip
    kind = METHODS[name].request_type
    return st.builds(kind, **{field: fields[field] for field in kind.DESCRIPTOR.fields_by_name})


@pytest.mark.scenario(10, 11, 13, 14, 20, 22)
@pytest.mark.parametrize("name", METHODS)
def test_any_message_is_answered_or_refused_and_booked(tmp_path: Path, name: str) -> None:
    """Scenarios 10, 11, 13, 14, 20, 22; invariant I5."""
    run: TinyRun = tiny_run(tmp_path, rounds=50)
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    valid = encode(filled(run.method, np.float32(1.0)))

    @given(request=requests(name, a.session, valid), tail=st.binary(max_size=6))
    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    def send(request: Message, tail: bytes) -> None:
        raw = request.SerializeToString() + tail
        before = run.service.ledger.total()
        try:
            run.answer(METHODS[name], raw)
        except FkdError as error:
            assert str(error)
        after = run.service.ledger.total()
        assert (after.calls - before.calls, after.message_up - before.message_up) == (1, len(raw))
        assert not run.coordinator.over
        b.poll()

    send()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"blobs", "uploads", "spool"}
