"""Robust estimates on numbers that can be computed by hand."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fkd_common.choices import Aggregation
from fkd_common.method.robust import (
    clip_factors,
    combine_coordinates,
    num_trimmed,
    shortened,
    update_norm,
)

MEDIAN, TRIMMED, MEAN = Aggregation.MEDIAN, Aggregation.TRIMMED_MEAN, Aggregation.MEAN


def columns(*clients: list[float]) -> list[np.ndarray]:
    return [np.array(client, dtype=np.float32) for client in clients]


def test_the_median_is_taken_coordinate_by_coordinate() -> None:
    values = columns([1, 9, 5], [2, 8, 5], [1e6, -1e6, 5])
    np.testing.assert_array_equal(combine_coordinates(values, MEDIAN, 0.2), [2, 8, 5])


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    values = columns([1], [2], [4], [1e6])
    np.testing.assert_array_equal(combine_coordinates(values, MEDIAN, 0.2), [3])


def test_the_trimmed_mean_leaves_out_the_ends_of_every_coordinate() -> None:
    """5 clients, a fifth off each end: mean of the middle three."""
    values = columns([1, 0], [2, 0], [3, 3], [7, 6], [1e6, 1e6])
    np.testing.assert_array_equal(combine_coordinates(values, TRIMMED, 0.2), [4, 3])


def test_a_trimmed_mean_that_trims_nobody_is_the_mean() -> None:
    values = columns([1], [2], [6])
    np.testing.assert_array_equal(combine_coordinates(values, TRIMMED, 0.2), [3])


@pytest.mark.parametrize(
    "clients, fraction, trimmed",
    [(10, 0.3, 3), (100, 0.29, 29), (3, 0.2, 0), (5, 0.2, 1), (10, 0.49, 4), (2, 0.49, 0), (1, 0.4, 0)],
)
def test_as_many_are_trimmed_as_the_fraction_says_rounded_down(
    clients: int, fraction: float, trimmed: int
) -> None:
    assert num_trimmed(clients, fraction) == trimmed
    assert clients - 2 * trimmed >= 1


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED])
def test_a_lone_client_comes_back_bit_for_bit(rule: Aggregation) -> None:
    value = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    assert combine_coordinates([value], rule, 0.3).astype(np.float32).tobytes() == value.tobytes()


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED])
def test_the_order_of_clients_does_not_change_a_bit(rule: Aggregation) -> None:
    rng = np.random.default_rng(1)
    values = [rng.normal(size=70_000).astype(np.float32) for _ in range(4)]
    results = {combine_coordinates(list(order), rule, 0.25).tobytes() for order in permutations(values)}
    assert len(results) == 1


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED])
def test_variances_stay_at_least_zero_and_counters_take_the_maximum(rule: Aggregation) -> None:
    assert combine_coordinates(columns([0], [0], [3], [0], [1]), rule, 0.2).min() >= 0
    counters = [np.array(steps, dtype=np.int64) for steps in (30, 50, 40)]
    result = combine_coordinates(counters, rule, 0.2)
    assert (result.dtype, int(result)) == (np.dtype(np.int64), 50)


@pytest.mark.parametrize("rule", [MEDIAN, TRIMMED])
@pytest.mark.scenario(44)
def test_three_liars_of_ten_cannot_leave_the_range_of_the_honest(rule: Aggregation) -> None:
    """Scenario 44: the stated bound of the coordinate-wise rules; the mean has none."""
    rng = np.random.default_rng(2)
    honest = [rng.normal(size=50).astype(np.float32) for _ in range(7)]
    liars = [np.full(50, lie, dtype=np.float32) for lie in (1e6, -1e6, 1e6)]
    result = combine_coordinates([*honest, *liars], rule, 0.3)
    assert np.all((result >= np.min(honest, axis=0)) & (result <= np.max(honest, axis=0)))
    assert np.abs(np.mean([*honest, *liars], axis=0)).min() > 1e4


def test_an_empty_cohort_and_a_mean_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        combine_coordinates([], MEDIAN, 0.2)
    with pytest.raises(ValueError, match="not a coordinate-wise rule"):
        combine_coordinates(columns([1]), MEAN, 0.2)


# -- norms --


def test_the_length_of_an_update_spans_all_tensors_but_counters() -> None:
    """√(3² + 4² + 12²) = 13."""
    start = {"w": np.array([1.0, 1.0]), "running_var": np.array([2.0]), "steps": np.array(5)}
    state = {"w": np.array([4.0, 5.0]), "running_var": np.array([14.0]), "steps": np.array(900)}
    assert update_norm(state, start) == 13.0


def test_updates_longer_than_a_multiple_of_the_median_are_shortened() -> None:
    """Lengths 1, 2, 100: at most 1.5 times the median 2."""
    np.testing.assert_allclose(clip_factors(np.array([1.0, 2.0, 100.0]), 1.5), [1, 1, 0.03], rtol=1e-12)
    np.testing.assert_array_equal(clip_factors(np.array([0.0, 0.0, 5.0]), 2.0), [1, 1, 0])


def test_a_shortened_student_lies_between_the_old_one_and_the_new_one() -> None:
    start = {"w": np.array([1.0], np.float32), "running_var": np.array([4.0], np.float32), "n": np.array(3)}
    state = {"w": np.array([9.0], np.float32), "running_var": np.array([0.0], np.float32), "n": np.array(7)}
    cut = shortened(state, start, 0.25)
    assert (cut["w"].item(), cut["running_var"].item(), cut["n"].item()) == (3.0, 3.0, 7)
    assert shortened(state, start, 1.0) == state


def test_shortening_never_makes_a_variance_negative() -> None:
    rng = np.random.default_rng(3)
    start = {"running_var": rng.uniform(0, 1e-3, 10_000).astype(np.float32)}
    state = {"running_var": np.zeros(10_000, dtype=np.float32)}
    assert shortened(state, start, 1.0 - 1e-16)["running_var"].min() >= 0
    assert shortened(state, start, np.nextafter(1.0, 0.0))["running_var"].min() >= 0
