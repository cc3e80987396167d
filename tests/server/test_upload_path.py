"""What is done to the bytes of an upload between its arrival and the average: nothing twice."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.exchange_method import MODEL, Aggregate
from fkd_common.pb import types_pb2 as types
from fkd_common.tensors import encode
from tests.methods.plain import Plain, install

from .test_method_faults import answer, start, submit
from .tiny import STUDENT, Site, TinyRun, filled, inline


@pytest.mark.parametrize("in_chunks", [False, True])
def test_an_upload_is_digested_once(
    run: TinyRun, sites: tuple[Site, Site], monkeypatch: pytest.MonkeyPatch, in_chunks: bool
) -> None:
    a, b = sites
    key, blob = a.key(1, STUDENT), encode(filled(run.method, 3.0))
    sha256, file_digest, digested = hashlib.sha256, hashlib.file_digest, [0]

    class Noting:
        """SHA-256 that counts what it is given of the upload."""

        def __init__(self, data: Any = b"") -> None:
            self._digest = sha256()
            self.update(data)

        def update(self, data: Any) -> None:
            digested[0] += len(data) if len(data) >= 32 and bytes(data) in blob else 0  # no names
            self._digest.update(data)

        def digest(self) -> bytes:
            return self._digest.digest()

        def hexdigest(self) -> str:
            return self._digest.hexdigest()

    def noting_file(file: Any, algorithm: Any) -> Any:
        digested[0] += len(file.read())
        file.seek(0)
        return file_digest(file, algorithm)

    monkeypatch.setattr(hashlib, "sha256", Noting)
    monkeypatch.setattr(hashlib, "file_digest", noting_file)
    upload = a.send(blob, key, step=480) if in_chunks else inline(blob)
    sent = digested[0] - len(blob) * in_chunks  # the sender's own
    a.call("SubmitStudent", key=key, upload=upload, num_samples=10, reliability=1.0)
    assert digested[0] - sent == len(blob)
    b.submit_student(1, filled(run.method, 1.0))
    assert run.rounds()[0]["phases"]["student"]["returned"] == ["a", "b"]


def test_a_method_may_change_what_it_is_given(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)

    def aggregate(self: Plain, state: Any, uploads: Any, round_number: int) -> Aggregate:
        model = state[MODEL]
        for upload in uploads:
            tensors = upload.tensors()
            tensors["w"] *= 2.0
            model["w"] += tensors["w"]
        return Aggregate({MODEL: model})

    monkeypatch.setattr(Plain, "aggregate", aggregate)
    run = start(prepared)
    before = run.store.blobs.tensors(run.method.state.groups[MODEL].sha256)["w"]
    a, b = (Site(name, answer(run)) for name in "ab")
    a.poll(), b.poll()
    submit(a, 1), submit(b, 1)
    run.service.tick()
    served = a.poll().task
    assert served.key == a.key(2, types.PHASE_EXCHANGE, served.key.run_id)
    after = run.store.blobs.tensors(run.method.state.groups[MODEL].sha256)["w"]
    np.testing.assert_array_equal(after, before + 4.0)
    run.close()
