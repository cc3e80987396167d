"""Fixed point: what rounding costs, what fits, and that addition is exact whatever the order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkd_common.secure_sum.fixed_point import QUANTUM, from_fixed, largest_summand, to_fixed


def test_a_value_travels_as_a_multiple_of_two_to_the_minus_twenty() -> None:
    """1.5·2^20 = 1572864; -1 is 2^64 - 2^20."""
    assert to_fixed(np.array([1.5, 0.0, -1.0]), 3).tolist() == [1572864, 0, 2**64 - 2**20]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9))
def test_a_sum_is_off_by_at_most_half_a_quantum_per_summand(values: list[float]) -> None:
    total = np.zeros(1, dtype=np.uint64)
    for value in values:
        total += to_fixed(np.array([value]), len(values))
    error = abs(float(from_fixed(total)[0]) - float(np.sum(np.array(values, dtype=np.longdouble))))
    assert error <= len(values) * QUANTUM / 2 + 1e-6  # 1e-6: float64's own rounding at 1e10


@pytest.mark.parametrize("participants", [1, 2, 10, 1000])
def test_the_largest_summands_do_not_wrap_around(participants: int) -> None:
    largest = largest_summand(participants)
    for sign in (1.0, -1.0):
        total = np.zeros((), dtype=np.uint64)
        for _ in range(participants):
            np.add(total, to_fixed(np.array(sign * largest), participants), out=total)
        assert float(from_fixed(total)) == pytest.approx(sign * largest * participants, rel=1e-12)


def test_ten_clients_may_send_students_of_magnitude_a_million_for_880_000_samples() -> None:
    assert largest_summand(10) >= 1e6 * 879_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e13, -1e13])
def test_a_value_that_does_not_fit_is_refused_by_magnitude(value: float) -> None:
    with pytest.raises(ValueError, match="does not fit a secure sum over 2 participants"):
        to_fixed(np.array([0.0, value]), 2)


def test_shapes_are_kept_also_without_dimensions() -> None:
    assert to_fixed(np.array(7), 2).shape == ()
    assert to_fixed(np.zeros((2, 0, 3)), 2).shape == (2, 0, 3)
