"""A client believes nothing: whatever a coordinator answers, it ends with a sentence and stays in its folders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from fkd_client.run_info import pause_s
from fkd_client.session import Session
from fkd_client.task_inputs import check_anchors
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, RefusedError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import MAX_CHUNK_BYTES, MAX_POLL_S, Method

CONFIG = RunConfig(personal=())


class Scripted:
    """Answers every method with the same bytes."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self._answers = answers

    def call(self, method: Method, request: bytes, timeout_s: float) -> bytes:
        return self._answers.get(method.name, b"")

    def close(self) -> None:
        pass


def described(**changes: Any) -> pb.RegisterResponse:
    """What a sound coordinator tells, but for the changes."""
    references = [types.ArtifactRef(name=name, sha256=bytes(32), size=9) for name in ("extractor", "anchors")]
    fields: dict[str, Any] = {
        "session": bytes(16), "run_id": "run-1", "config_json": CONFIG.canonical_json(),
        "config_sha256": CONFIG.sha256(), "classes": ["cat", "dog"], "artifacts": references,
        "max_chunk_bytes": MAX_CHUNK_BYTES,
    }  # fmt: skip
    return pb.RegisterResponse(**{**fields, **changes})


@contextmanager
def told(answer: bytes, **others: bytes) -> Iterator[Session]:
    session = Session(Scripted({"Register": answer, **others}), "a", patience_s=0.0)
    try:
        yield session
    finally:
        session.close(notify=False)


def test_a_sound_description_is_understood() -> None:
    with told(described().SerializeToString()) as session:
        assert session.register().classes == ("cat", "dog")


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"run_id": "../../elsewhere"}, "run id"),
        ({"run_id": ""}, "run id"),
        ({"run_id": "/etc"}, "run id"),
        ({"config_json": "[1]"}, "JSON object"),
        ({"config_json": "{"}, "not understood"),
        ({"config_json": "[" * 100_000}, "not understood"),
        ({"config_json": '{"rounds": -1}'}, "not understood"),
        ({"config_sha256": "ab" * 32}, "does not match its hash"),
        ({"classes": ["cat", "cat"]}, "given twice"),
        ({"classes": []}, "classes"),
        ({"artifacts": []}, "extractor"),
        ({"artifacts": [types.ArtifactRef(name="extractor", sha256=b"")]}, "extractor"),
        ({"max_chunk_bytes": 0}, "chunks of 0 bytes"),
    ],
)
def test_a_description_that_cannot_be_is_refused(changes: dict[str, Any], named: str) -> None:
    with told(described(**changes).SerializeToString()) as session, pytest.raises(RefusedError, match=named):
        session.register()


@pytest.mark.scenario(34)
def test_an_answer_of_another_kind_is_refused(seen: Callable[[object], None]) -> None:
    """Scenario 34: another service at the address, or another protocol."""
    with told(b"\xff\xffHTTP/1.1 200 OK") as session, pytest.raises(RefusedError) as refused:
        session.register()
    assert refused.value.reason == "MALFORMED"
    seen(f"client: exit {refused.value.exit_code:d} {refused.value.reason}")


@pytest.mark.scenario(34)
def test_fields_of_a_newer_coordinator_are_ignored() -> None:
    """Scenario 34."""
    unknown = b"\xfa\x3e\x03new"  # field 1007
    wait = pb.NextTaskResponse(wait=pb.Wait(retry_after_s=1.0)).SerializeToString() + unknown
    with told(described().SerializeToString() + unknown, NextTask=wait) as session:
        assert session.register().run_id == "run-1"
        assert session.next_task().wait.retry_after_s == 1.0


@pytest.mark.scenario(34)
def test_keys_of_a_newer_configuration_are_refused() -> None:
    """Scenario 34: a key this client does not know would mean another method."""
    keys = CONFIG.canonical_json()[:-1] + ', "sharpness": 2}'
    answer = described(config_json=keys).SerializeToString()
    with told(answer) as session, pytest.raises(RefusedError, match="sharpness"):
        session.register()


@pytest.mark.scenario(34)
def test_a_failure_in_a_phase_this_client_does_not_know_can_be_reported() -> None:
    """Scenario 34: a newer coordinator may have phases of its own."""
    with told(described().SerializeToString()) as session:
        session.register()
        session.report_failure(types.TaskKey(run_id="run-1", round=1, phase=99), "unknown phase")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "asked, paused",
    [(0.5, 0.5), (-1.0, 0.0), (float("nan"), 0.0), (float("inf"), MAX_POLL_S), (1e300, MAX_POLL_S)],
)
def test_a_pause_is_bounded(asked: float, paused: float) -> None:
    assert pause_s(pb.Wait(retry_after_s=asked)) == paused


@pytest.mark.scenario(35)
@pytest.mark.parametrize(
    "images, embeddings",
    [
        (np.zeros((3, 8, 8), np.uint8), np.zeros((3, 4), np.float32)),
        (np.zeros((3, 8, 8, 1), np.uint8), np.zeros((2, 4), np.float32)),
        (np.zeros((3, 8, 8, 1), np.uint8), np.zeros((3, 5), np.float32)),
        (np.zeros((0, 8, 8, 1), np.uint8), np.zeros((0, 4), np.float32)),
        (np.zeros((3, 8, 8, 1), np.uint8), np.full((3, 4), np.nan, np.float32)),
    ],
)
def test_anchors_that_do_not_fit_each_other_are_refused(images: np.ndarray, embeddings: np.ndarray) -> None:
    """Scenario 35."""
    with pytest.raises(DataError, match="anchors"):
        check_anchors(images, embeddings, 4)
