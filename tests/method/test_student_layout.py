"""Names, shapes, bytes and first values of the student."""

from __future__ import annotations

import numpy as np
import pytest

from fkd_common.choices import Norm
from fkd_common.method.student_layout import TensorSpec, initial_student, payload_bytes, student_layout


@pytest.mark.parametrize("num_classes, expected", [(9, 1_726_524), (10, 1_727_040), (100, 1_773_480)])
def test_payload_of_the_default_student(num_classes: int, expected: int) -> None:
    assert payload_bytes(student_layout(512, (512, 256, 128), num_classes, Norm.BATCH)) == expected


def test_payload_without_running_statistics() -> None:
    # 1,792 floats and 3 counters less.
    layout = student_layout(512, (512, 256, 128), 10, Norm.LAYER)
    assert payload_bytes(layout) == 1_727_040 - 1_792 * 4 - 3 * 8


def test_names_stand_in_state_dict_order() -> None:
    assert list(student_layout(4, (3,), 2, Norm.BATCH).items()) == [
        ("layers.0.linear.weight", TensorSpec((3, 4), "float32")),
        ("layers.0.linear.bias", TensorSpec((3,), "float32")),
        ("layers.0.norm.weight", TensorSpec((3,), "float32")),
        ("layers.0.norm.bias", TensorSpec((3,), "float32")),
        ("layers.0.norm.running_mean", TensorSpec((3,), "float32")),
        ("layers.0.norm.running_var", TensorSpec((3,), "float32")),
        ("layers.0.norm.num_batches_tracked", TensorSpec((), "int64")),
        ("output.weight", TensorSpec((2, 3), "float32")),
        ("output.bias", TensorSpec((2,), "float32")),
    ]


@pytest.mark.parametrize("norm", list(Norm))
def test_the_initial_student_has_the_layout(norm: Norm) -> None:
    state = initial_student(0, 6, (5, 4), 3, norm)
    actual = {name: TensorSpec(tensor.shape, str(tensor.dtype)) for name, tensor in state.items()}
    assert list(actual.items()) == list(student_layout(6, (5, 4), 3, norm).items())


def test_the_output_layer_starts_at_zero_and_norms_at_the_identity() -> None:
    state = initial_student(0, 6, (5,), 3, Norm.BATCH)
    for name, value in [
        ("output.weight", 0.0),
        ("output.bias", 0.0),
        ("layers.0.norm.weight", 1.0),
        ("layers.0.norm.bias", 0.0),
        ("layers.0.norm.running_mean", 0.0),
        ("layers.0.norm.running_var", 1.0),
        ("layers.0.norm.num_batches_tracked", 0),
    ]:
        np.testing.assert_array_equal(state[name], value)


def test_hidden_layers_are_uniform_within_one_over_root_fan_in() -> None:
    state = initial_student(0, 400, (200, 100), 3, Norm.BATCH)
    for i, bound in ((0, 1 / np.sqrt(400)), (1, 1 / np.sqrt(200))):
        weight = state[f"layers.{i}.linear.weight"]
        assert 0.99 * bound < np.abs(weight).max() <= np.float32(bound)
        assert weight.std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
        assert 0 < np.abs(state[f"layers.{i}.linear.bias"]).max() <= np.float32(bound)


def test_the_seed_decides_the_student() -> None:
    a, b, c = (initial_student(seed, 6, (5,), 3, Norm.BATCH) for seed in (1, 1, 2))
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    assert a["layers.0.linear.weight"].tobytes() != c["layers.0.linear.weight"].tobytes()
