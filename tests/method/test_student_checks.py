"""The numpy forward pass is torch's, and a student that would spoil what others compute is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fkd_client.student import outputs, train_student
from fkd_common.choices import Norm
from fkd_common.config import RunConfig
from fkd_common.method.student_checks import MAX_RESPONSE, UPLOAD_ROOM, student_flaw
from fkd_common.method.student_forward import student_responses
from fkd_common.method.student_layout import initial_student, student_layout

D, HIDDEN, C = 16, (12, 8, 6), 3
ANCHORS = np.random.default_rng(0).normal(size=(20, D)).astype(np.float32)


def config(norm: Norm) -> RunConfig:
    return RunConfig(hidden=HIDDEN, dropout=(0.0, 0.0, 0.0), norm=norm, local_steps=5)


def some_student(norm: Norm, scale: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    student = {}
    for name, spec in student_layout(D, HIDDEN, C, norm).items():
        student[name] = np.asarray(scale * rng.normal(size=spec.shape)).astype(spec.dtype)
        if name.endswith("running_var"):
            student[name] = np.abs(student[name])
    return student


def flaw(student: dict[str, Any], norm: Norm = Norm.BATCH, room: float = 1.0) -> str:
    return student_flaw(student, ANCHORS, norm, room) or ""


@pytest.mark.parametrize("norm", list(Norm))
def test_the_forward_pass_is_torchs(norm: Norm) -> None:
    student = some_student(norm)
    ours, torchs = student_responses(student, ANCHORS, norm), outputs(student, ANCHORS, config(norm))
    np.testing.assert_allclose(ours.logits, torchs.logits, rtol=1e-4, atol=1e-4)
    assert len(ours.hidden) == len(torchs.hidden) == 3
    for mine, other in zip(ours.hidden, torchs.hidden, strict=True):
        assert mine.dtype == np.float32
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)


def test_with_statistics_of_the_batch_scale_and_shift_of_a_layers_input_do_not_matter() -> None:
    student = some_student(Norm.BATCH)
    moved = {**student, "layers.0.linear.weight": 7 * student["layers.0.linear.weight"]}
    moved["layers.0.linear.bias"] = student["layers.0.linear.bias"] + 5
    a, b = (student_responses(s, ANCHORS, Norm.BATCH, batch_statistics=True) for s in (student, moved))
    np.testing.assert_allclose(a.logits, b.logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", list(Norm))
def test_untrained_and_trained_students_have_no_flaw(norm: Norm) -> None:
    student = initial_student(0, D, HIDDEN, C, norm)
    assert flaw(student, norm) == ""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, C, 64)
    h = rng.normal(size=(64, D)).astype(np.float32)
    soft = np.full((64, C), 1 / C)
    trained = train_student(student, h, labels, soft, np.arange(C), config(norm), round_number=1, seed=3)
    assert flaw(trained, norm) == ""


@pytest.mark.scenario(12)
@pytest.mark.parametrize("norm", list(Norm))
def test_weights_that_are_finite_and_outputs_that_are_not(norm: Norm) -> None:
    """Scenario 12: every value in range, variances 0, and NaN for everybody's images."""
    student = {
        name: np.full_like(value, 0 if value.dtype == np.int64 or name.endswith("running_var") else 1e3)
        for name, value in some_student(norm).items()
    }
    assert "on the anchors in eval mode, values after" in flaw(student, norm)
    huge = {
        name: value if value.dtype == np.int64 else value * np.float32(1e30)
        for name, value in student.items()
    }
    assert "at most 1e+03 is accepted" in flaw(huge, norm)
    assert "at most 1e+04 is accepted" in flaw(huge, norm, UPLOAD_ROOM)


@pytest.mark.scenario(12)
def test_a_student_that_is_sound_only_until_it_is_trained_on() -> None:
    """Scenario 12: huge variances hide huge weights; the next round's batches would not."""
    student = initial_student(0, D, HIDDEN, C, Norm.BATCH)
    student["layers.0.norm.running_var"][:] = 1e8
    student["layers.0.norm.weight"][:] = 1e3
    student["layers.1.linear.weight"][:] = 1e2
    student["layers.1.norm.running_var"][:] = 1e4
    assert "on the anchors with their own statistics" in flaw(student)


@pytest.mark.scenario(12)
def test_limits_are_those_of_an_average_and_ten_times_as_much_for_one_student() -> None:
    """Scenario 12: what is trained from an average at its limit must still be accepted."""
    student = initial_student(0, D, HIDDEN, C, Norm.BATCH)
    for name, limit in (
        ("output.weight", 1e3),
        ("layers.0.norm.running_mean", 1e4),
        ("layers.0.norm.running_var", 1e8),
    ):
        room = limit * (100 if name.endswith("running_var") else 10)
        for value, in_average, alone in (
            (0.9 * limit, True, True),
            (1.1 * limit, False, True),
            (1.1 * room, False, False),
        ):
            changed = {**student, name: np.full_like(student[name], value)}
            assert ("magnitude" not in flaw(changed)) == in_average
            assert ("magnitude" not in flaw(changed, room=UPLOAD_ROOM)) == alone
    logits = {**student, "output.bias": np.full(C, 999.0, np.float32)}
    logits["output.weight"] = np.full_like(student["output.weight"], 999.0)
    logits["layers.2.norm.bias"] = np.full_like(student["layers.2.norm.bias"], 5.0)
    assert "values after 'output' reach" in flaw(logits) and MAX_RESPONSE < 2e4
    assert flaw(logits, room=UPLOAD_ROOM) == ""


@pytest.mark.scenario(12)
def test_a_negative_variance_is_a_flaw() -> None:
    """Scenario 12."""
    student = some_student(Norm.BATCH)
    student["layers.1.norm.running_var"][0] = -1e-6
    assert flaw(student) == "tensor 'layers.1.norm.running_var' has a negative variance"
