"""Uploads and models under codecs: what is averaged, what is booked, what is refused, what a restart changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fkd_common.choices import ModelCodec, UpdateCodec
from fkd_common.codecs.student import pack_update, unpack_model, unpack_update
from fkd_common.errors import InvalidUploadError
from fkd_common.tensors import decode, encode

from .test_bytes import booked
from .tiny import STUDENT, Site, TinyRun, filled, inline, tiny_run

CODED = {"update_codec": "int8", "model_codec": "int8", "statistics_codec": "int16", "rounds": 2}


def coded_run(folder: Path) -> tuple[TinyRun, Site, Site]:
    run = tiny_run(folder, **CODED)
    a, b = run.site("a"), run.site("b")
    a.poll()
    b.poll()
    return run, a, b


def packed(run: TinyRun, value: float, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return dict(pack_update(filled(run.method, value), run.method.student(), UpdateCodec.INT8, rng))


def test_what_is_averaged_is_what_was_unpacked(tmp_path: Path) -> None:
    run, a, b = coded_run(tmp_path)
    method = run.method
    received = [
        unpack_update(packed(run, value), method.student(), method.layout, UpdateCodec.INT8)
        for value in (1.0, 3.0)
    ]
    a.submit_student(1, packed(run, 1.0))
    b.submit_student(1, packed(run, 3.0))
    for name, array in run.method.student().items():
        np.testing.assert_allclose(array, (received[0][name] + received[1][name]) / 2, atol=0.02)
    served = decode(a.fetch(a.poll().task.inputs[0], a.key(2, STUDENT)))
    fetched = unpack_model(served, method.layout, ModelCodec.INT8)
    for name, array in method.student().items():
        np.testing.assert_array_equal(fetched[name], array)


def test_payload_is_what_was_packed(tmp_path: Path) -> None:
    run, a, _ = coded_run(tmp_path)
    a.submit_student(1, packed(run, 1.0))
    assert booked(run, "a", "student").payload_up == sum(part.nbytes for part in packed(run, 1.0).values())


def test_a_restart_in_between_changes_nothing(tmp_path: Path) -> None:
    """Scenario 3: what is kept of an upload is complete without the coordinator that received it."""
    models = []
    for restarted in (False, True):
        run, a, b = coded_run(tmp_path / str(restarted))
        a.submit_student(1, packed(run, 1.0))
        if restarted:
            run.store.close()
            run = tiny_run(tmp_path / str(restarted), **CODED)
            b = run.site("b")
            b.poll()
        b.submit_student(1, packed(run, 3.0))
        models.append(encode(run.method.student()))
    assert models[0] == models[1]


@pytest.mark.scenario(10, 11, 12)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda parts: parts.update(scales=np.full_like(parts["scales"], np.nan)), "NOT_FINITE"),
        (lambda parts: parts.update(scales=np.full_like(parts["scales"], 1e30)), "OUT_OF_RANGE"),
        (lambda parts: parts.update(scales=parts["scales"][:-1]), "WRONG_SHAPE"),
        (lambda parts: parts.update(matrices=parts["matrices"][:-3]), "INVALID_UPLOAD"),
        (lambda parts: parts.pop("vectors"), "WRONG_NAMES"),
    ],
)
def test_what_cannot_be_unpacked_is_refused_and_costs_the_round_nothing(
    tmp_path: Path, change: object, reason: str
) -> None:
    run, a, b = coded_run(tmp_path)
    parts = packed(run, 1.0)
    change(parts)  # type: ignore[operator]
    with pytest.raises(InvalidUploadError) as refused:
        a.submit_student(1, parts)
    assert (refused.value.reason or refused.value.code) in (reason, "WRONG_SIZE")
    b.submit_student(1, packed(run, 3.0))
    assert run.rounds()[0]["phases"]["student"]["failed"].keys() == {"a"}


@pytest.mark.scenario(12)
@pytest.mark.parametrize("codec", ["fp16", "int8"])
def test_one_large_variance_does_not_become_everybodys_zeros(tmp_path: Path, codec: str) -> None:
    run = tiny_run(
        tmp_path, update_codec="int4", model_codec=codec, norm="batch", hidden=(8, 4), dropout=(0.0, 0.0),
        min_clients=3, rounds=2,
    )  # fmt: skip
    start, sites = run.method.student(), [run.site(name) for name in "abc"]
    for site in sites:
        site.poll()
    for site, variance in zip(sites, (1.0, 1.0, 2.9e8), strict=True):
        student = {name: array.copy() for name, array in start.items()}
        student["layers.0.norm.running_var"][0] = variance
        packed = pack_update(student, start, UpdateCodec.INT4, np.random.default_rng(0))
        site.submit_student(1, dict(packed))
    after = run.method.student()
    assert run.rounds()[0]["phases"]["student"]["returned"] == ["a", "b", "c"]
    np.testing.assert_allclose(after["layers.0.norm.running_var"][1:], 1.0)
    np.testing.assert_allclose(after["layers.1.norm.weight"], 1.0)


@pytest.mark.scenario(11)
def test_a_student_that_was_not_packed_is_refused(tmp_path: Path) -> None:
    run, a, _ = coded_run(tmp_path)
    with pytest.raises(InvalidUploadError, match="tensor names differ"):
        a.call(
            "SubmitStudent",
            key=a.key(1, STUDENT),
            upload=inline(encode(filled(run.method, 1.0))),
            num_samples=10,
            reliability=1.0,
        )
