"""Eqs. 12, 14 and 15 with two clients and three weights."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from fkd_common.method.aggregation import (
    ResidualFusion,
    WeightedAverage,
    capped_shares,
    client_weights,
    drop_unreliable,
)


def random_student(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(5, 3)).astype(np.float32),
        "b": rng.normal(size=3).astype(np.float32),
        "steps": np.array(seed, dtype=np.int64),
    }


def same_bits(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes() for k in a
    )


# -- Eq. 15 --


def test_weights_are_size_times_reliability() -> None:
    # 100·0.9 : 300·0.1 = 90 : 30.
    np.testing.assert_allclose(
        client_weights(np.array([100, 300]), np.array([0.9, 0.1]), tau=0.1), [0.75, 0.25], rtol=1e-12
    )


def test_the_floor_lifts_an_unreliable_client() -> None:
    # 100·0.5 : 500·max(0, 0.1) = 50 : 50.
    np.testing.assert_allclose(
        client_weights(np.array([100, 500]), np.array([0.5, 0.0]), tau=0.1), [0.5, 0.5], rtol=1e-12
    )


def test_weights_sum_to_one() -> None:
    rng = np.random.default_rng(0)
    weights = client_weights(rng.integers(1, 10_000, size=50), rng.uniform(size=50), tau=0.1)
    assert weights.sum() == pytest.approx(1.0, abs=1e-15)
    assert np.all(weights > 0)


@pytest.mark.parametrize(
    "n, r", [([10, 20], [0.0, 0.0]), ([0, 0], [1.0, 1.0]), ([], []), ([5], [float("nan")])]
)
def test_weights_without_a_positive_sum_are_refused(n: list[int], r: list[float]) -> None:
    with pytest.raises(ValueError, match="positive sum"):
        client_weights(np.array(n), np.array(r), tau=0.0)


def test_clients_at_the_threshold_stay_and_below_it_go() -> None:
    np.testing.assert_array_equal(drop_unreliable(np.array([0.2, 0.3, 0.4]), 0.3), [False, True, True])


def test_without_a_threshold_everybody_stays() -> None:
    np.testing.assert_array_equal(drop_unreliable(np.array([0.0, 1.0]), None), [True, True])


@pytest.mark.scenario(13)
def test_what_the_cap_cuts_goes_to_the_others_in_proportion() -> None:
    """Scenario 13: 6 : 3 : 1 capped at 0.4 leaves 0.6 for 3 : 1, and of 0.45 another 0.05 to the last."""
    np.testing.assert_allclose(capped_shares(np.array([6, 3, 1]), 0.5), [0.5, 0.375, 0.125], rtol=1e-12)
    np.testing.assert_allclose(capped_shares(np.array([6, 3, 1]), 0.4), [0.4, 0.4, 0.2], rtol=1e-12)


def test_a_cap_that_cannot_be_kept_makes_weights_equal() -> None:
    np.testing.assert_array_equal(capped_shares(np.array([8, 1, 1, 0]), 0.2), [1 / 3, 1 / 3, 1 / 3, 0])
    np.testing.assert_array_equal(capped_shares(np.array([8, 1]), 0.5), [0.5, 0.5])


def test_a_cap_nobody_reaches_changes_nothing() -> None:
    for cap in (1.0, 0.7):
        np.testing.assert_array_equal(capped_shares(np.array([6, 3, 1]), cap), [0.6, 0.3, 0.1])


def test_capped_shares_sum_to_one_keep_the_order_and_the_cap() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        weights, cap = rng.exponential(size=rng.integers(2, 12)) ** 3, rng.uniform(0.05, 1.0)
        shares = capped_shares(weights, cap)
        assert shares.sum() == pytest.approx(1.0, abs=1e-12)
        assert shares.max() <= max(cap, 1 / len(weights)) + 1e-12
        assert np.all(np.diff(shares[np.argsort(weights)]) >= -1e-12)


# -- Eq. 14 --


def test_two_students_of_three_weights_average_by_hand() -> None:
    average = WeightedAverage()
    average.add({"w": np.array([0.0, 4.0, -8.0], dtype=np.float32)}, 0.25)
    average.add({"w": np.array([4.0, 8.0, 8.0], dtype=np.float32)}, 0.75)
    np.testing.assert_array_equal(average.result()["w"], np.array([3.0, 7.0, 4.0], dtype=np.float32))


def test_weights_need_not_be_normalised() -> None:
    average = WeightedAverage()
    average.add({"w": np.array([0.0, 4.0, -8.0], dtype=np.float32)}, 100.0)
    average.add({"w": np.array([4.0, 8.0, 8.0], dtype=np.float32)}, 300.0)
    np.testing.assert_array_equal(average.result()["w"], [3.0, 7.0, 4.0])


@pytest.mark.parametrize("weight", [1.0, 0.1, 1 / 3, 12345.678])
def test_averaging_one_client_returns_it_bit_exactly(weight: float) -> None:
    student = random_student(7)
    student["edge"] = np.array([-0.0, 1e-45, 3.4e38], dtype=np.float32)
    student["double"] = np.array([0.1, 1 / 3], dtype=np.float64)
    average = WeightedAverage()
    average.add(student, weight)
    assert same_bits(average.result(), student)


def test_averaging_equal_clients_returns_them_bit_exactly() -> None:
    average = WeightedAverage()
    for weight in (0.3, 0.3, 0.4):
        average.add(random_student(7), weight)
    assert same_bits(average.result(), random_student(7))


def test_arrival_order_does_not_change_a_bit_when_added_in_sorted_order() -> None:
    students = {f"client-{k}": (random_student(k), 0.1 + k / 7) for k in range(4)}
    results = []
    for arrival in permutations(students):
        spooled = {name: students[name] for name in arrival}
        average = WeightedAverage()
        for name in sorted(spooled):
            average.add(*spooled[name])
        results.append(average.result())
    assert all(same_bits(result, results[0]) for result in results)


def test_streaming_equals_the_direct_sum() -> None:
    weights = client_weights(np.array([10, 20, 30, 40]), np.array([0.5, 0.6, 0.7, 0.8]), tau=0.1)
    average = WeightedAverage()
    for k, weight in enumerate(weights):
        average.add(random_student(k), float(weight))
    expected = sum(weight * random_student(k)["w"].astype(np.float64) for k, weight in enumerate(weights))
    np.testing.assert_allclose(average.result()["w"], expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 65_537, 200_001])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_moving_the_mean_in_pieces_changes_no_bit(size: int, dtype: type) -> None:
    clients = [np.random.default_rng(k).standard_normal(size).astype(dtype) for k in range(4)]
    weights = [0.3, 1 / 7, 12.0, 1e-9]
    average, total = WeightedAverage(), 0.0
    mean = clients[0].astype(np.float64)
    for values, weight in zip(clients, weights, strict=True):
        average.add({"w": values}, weight)
        total += weight
        if values is not clients[0]:
            mean = mean + (values.astype(np.float64) - mean) * (weight / total)
    assert same_bits(average.result(), {"w": mean.astype(dtype)})


def test_memory_layout_and_readonly_memory_do_not_matter_to_an_average() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(0, 12, 2, dtype=np.float32).reshape(2, 3)
    average = WeightedAverage()
    for values, other in ((np.asfortranarray(a), b), (np.repeat(b, 2, axis=1)[:, ::2], a)):
        values.flags.writeable = False
        average.add({"w": values, "steps": other.astype(np.int64)}, 1.0)
    assert same_bits(average.result(), {"w": (a + b) / np.float32(2), "steps": b.astype(np.int64)})


def test_a_result_is_handed_over_once() -> None:
    average = WeightedAverage()
    average.add(random_student(1), 0.5)
    result = average.result()
    with pytest.raises(ValueError, match="at least one client"):
        average.result()
    average.add(random_student(2), 0.25)
    assert same_bits(average.result(), random_student(2))
    assert same_bits(result, random_student(1))


def test_batch_counters_take_the_maximum_and_stay_integers() -> None:
    average = WeightedAverage()
    for steps in (30, 50, 40):
        average.add({"num_batches_tracked": np.array(steps, dtype=np.int64)}, 1.0)
    result = average.result()["num_batches_tracked"]
    assert (result.dtype, result.shape, int(result)) == (np.dtype(np.int64), (), 50)


def test_running_statistics_are_averaged_with_the_same_weights() -> None:
    average = WeightedAverage()
    average.add({"running_var": np.array([1.0], dtype=np.float32)}, 1.0)
    average.add({"running_var": np.array([5.0], dtype=np.float32)}, 3.0)
    np.testing.assert_array_equal(average.result()["running_var"], [4.0])


def test_a_client_of_weight_zero_leaves_no_trace() -> None:
    average = WeightedAverage()
    average.add(random_student(9), 0.0)
    average.add(random_student(1), 0.5)
    average.add(random_student(9), 0.0)
    assert same_bits(average.result(), random_student(1))


def test_what_was_added_is_neither_changed_nor_kept() -> None:
    first, second = random_student(1), random_student(2)
    average = WeightedAverage()
    average.add(first, 1.0)
    first["w"][:] = np.nan
    average.add(second, 1.0)
    assert np.all(np.isfinite(average.result()["w"]))
    assert same_bits(second, random_student(2))


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_impossible_weights_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="finite weight"):
        WeightedAverage().add(random_student(1), weight)


@pytest.mark.parametrize(
    "other, odd",
    [({"w": np.zeros(3), "b": np.zeros(2)}, "b"), ({"w": np.zeros(4)}, "w"), ({"v": np.zeros(3)}, "v, w")],
)
def test_students_of_another_layout_are_refused_by_name(other: dict[str, np.ndarray], odd: str) -> None:
    average = WeightedAverage()
    average.add({"w": np.zeros(3)}, 1.0)
    with pytest.raises(ValueError, match=f"these differ: {odd}$"):
        average.add(other, 1.0)


def test_an_empty_average_is_refused() -> None:
    average = WeightedAverage()
    average.add(random_student(1), 0.0)
    with pytest.raises(ValueError, match="at least one client"):
        average.result()


# -- Eq. 12 --


def test_residuals_of_two_clients_fuse_by_size() -> None:
    # 2 anchors, 3 classes; n = 100 and 300: a quarter and three quarters.
    fusion = ResidualFusion()
    fusion.add(np.array([[4.0, 0.0, -4.0], [0.0, 0.0, 8.0]], dtype=np.float32), 100.0)
    fusion.add(np.array([[0.0, 4.0, 4.0], [0.0, -4.0, 0.0]], dtype=np.float32), 300.0)
    fused = fusion.result()
    np.testing.assert_array_equal(fused, [[1.0, 3.0, 2.0], [0.0, -3.0, 2.0]])
    assert fused.dtype == np.float32


def test_class_aware_fusion_weighs_each_column_by_its_own_counts() -> None:
    # Class 0: 1 : 3. Class 1: only the second client. Class 2: nobody.
    fusion = ResidualFusion()
    fusion.add(np.array([[4.0, 9.0, 5.0]]), np.array([10, 0, 0]))
    fusion.add(np.array([[8.0, 2.0, 7.0]]), np.array([30, 20, 0]))
    np.testing.assert_array_equal(fusion.result(), [[7.0, 2.0, 0.0]])


def test_fusing_one_client_returns_it_bit_exactly() -> None:
    residuals = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    fusion = ResidualFusion()
    fusion.add(residuals, 37.0)
    assert fusion.result().tobytes() == residuals.tobytes()


def test_residuals_of_another_shape_are_refused() -> None:
    fusion = ResidualFusion()
    fusion.add(np.zeros((2, 3)), 1.0)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        fusion.add(np.zeros((3, 3)), 1.0)
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        fusion.add(np.zeros((2, 4)), 1.0)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), np.array([1.0, -1.0])])
def test_impossible_fusion_weights_are_refused(weight: float | np.ndarray) -> None:
    with pytest.raises(ValueError, match="finite weights"):
        ResidualFusion().add(np.zeros((1, 2)), weight)


def test_an_empty_fusion_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one client"):
        ResidualFusion().result()
