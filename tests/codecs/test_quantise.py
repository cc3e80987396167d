"""Steps, scales and roundings on numbers that can be checked by hand."""

import numpy as np
import pytest

from fkd_common.codecs.quantise import (
    from_float16,
    rows_from_int8,
    rows_from_int16,
    rows_to_int8,
    rows_to_int16,
    to_float16,
    with_fewer_digits,
)


def test_int8_rows_are_counted_in_127ths_of_their_largest_value():
    values = np.array([1.0, -127.0, 63.5, 0.0, 0.0], np.float32)
    steps, step = rows_to_int8(values, [2, 1, 2], None)
    np.testing.assert_array_equal(steps, [1, -127, 127, 0, 0])
    np.testing.assert_array_equal(step, np.array([1.0, 0.5, 0.0], np.float32))
    np.testing.assert_array_equal(rows_from_int8(steps, step, [2, 1, 2]), values)


def test_random_rounding_has_no_bias_and_is_off_by_less_than_a_step():
    values = np.array([127.0] + [0.25] * 40_000, np.float32)  # a step is 1
    steps, step = rows_to_int8(values, [len(values)], np.random.default_rng(0))
    back = rows_from_int8(steps, step, [len(values)])[1:]
    assert set(back.tolist()) == {0.0, 1.0}
    assert abs(back.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 40_000)
    nearest, _ = rows_to_int8(values, [len(values)], None)
    assert not nearest[1:].any()


def test_int16_rows_are_counted_in_powers_of_two():
    matrix = np.array([[32767.0, -1.0], [0.5, 0.25], [0.0, 0.0]], np.float32)
    steps, exponents = rows_to_int16(matrix)
    assert exponents[0] == 0
    np.testing.assert_array_equal(steps[0], [32767, -1])
    np.testing.assert_array_equal(rows_from_int16(steps, exponents), matrix)  # all of these are exact


def test_int16_is_off_by_less_than_a_step():
    matrix = (np.random.default_rng(1).normal(size=(50, 20)) * np.exp2(np.arange(-25, 25))[:, None]).astype(
        np.float32
    )
    error = np.abs(rows_from_int16(*rows_to_int16(matrix)) - matrix).max(axis=1)
    assert (error <= 2 * np.abs(matrix).max(axis=1) / 32767).all()  # a step is between one and two of these


@pytest.mark.scenario(37)
@pytest.mark.parametrize("num_classes", [2, 10, 100, 1000])
def test_int16_rows_keep_their_sums(num_classes):
    """A site of one class: all the others have the same small value, and would be rounded the same way."""
    one_class = np.full((1, num_classes), -1 / num_classes)
    one_class[0, 0] += 1
    matrix = np.concatenate([one_class, np.random.default_rng(0).normal(size=(20, num_classes))])
    matrix = (matrix - matrix.mean(axis=1, keepdims=True)).astype(np.float32)
    steps, _ = rows_to_int16(matrix)
    assert np.abs(steps.sum(axis=1)).max() <= 1


def test_an_exponent_that_leaves_the_range_gives_infinity_to_be_refused():
    assert np.isinf(rows_from_int16(np.array([[32767]], np.int16), np.array([127], np.int8))).all()


def test_halves_hold_what_half_precision_alone_cannot():
    values = np.array([1e6, 3.0, 0.0, -1e6], np.float32)
    halves, scale = to_float16(values)
    assert np.isfinite(halves).all()
    np.testing.assert_allclose(from_float16(halves, scale), values, rtol=1e-3)
    halves, scale = to_float16(np.zeros(3, np.float32))
    np.testing.assert_array_equal(from_float16(halves, scale), np.zeros(3))


def test_fewer_digits_are_those_of_half_precision_and_the_range_is_that_of_single():
    values = np.random.default_rng(0).laplace(size=1000).astype(np.float32)
    np.testing.assert_array_equal(with_fewer_digits(values), values.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(with_fewer_digits(values * 2.0**90), with_fewer_digits(values) * 2.0**90)
    largest = np.array([np.finfo(np.float32).max, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(with_fewer_digits(largest), largest)
