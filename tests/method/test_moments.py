"""Pooled moments: sums that add up exactly and solve to the pooled ridge."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fkd_common.choices import MomentFeatures
from fkd_common.method.moments import (
    Moments,
    accumulate,
    apply_moments,
    centre,
    make_definite,
    moment_targets,
    moment_vector,
    num_moment_features,
    pack_symmetric,
    solve,
    unpack_symmetric,
)


def features(seed: int, n: int, p: int = 9) -> np.ndarray:
    z = np.random.default_rng(seed).normal(size=(n, p)).astype(np.float32)
    z[:, -1] = 1.0
    return z


def split_in_three(z: np.ndarray, r: np.ndarray) -> Moments:
    parts = [accumulate(z[rows], r[rows]) for rows in (slice(0, 7), slice(7, 50), slice(50, None))]
    return parts[0] + parts[1] + parts[2]


# -- features and targets --


@pytest.mark.parametrize(
    "which, expected",
    [
        (MomentFeatures.HIDDEN, [[1.0, 2.0, 3.0, 8.0, 9.0, 1.0]]),
        (MomentFeatures.LAST, [[3.0, 8.0, 9.0, 1.0]]),
        (MomentFeatures.EMBEDDING, [[8.0, 9.0, 1.0]]),
    ],
)
def test_features_are_hidden_then_embedding_then_one(
    which: MomentFeatures, expected: list[list[float]]
) -> None:
    z = moment_vector([np.array([[1.0, 2.0]]), np.array([[3.0]])], np.array([[8.0, 9.0]]), which)
    np.testing.assert_array_equal(z, expected)
    assert z.dtype == np.float32
    assert z.shape[1] == num_moment_features((2, 1), 2, which)


@pytest.mark.parametrize(
    "which, p",
    [(MomentFeatures.HIDDEN, 1409), (MomentFeatures.LAST, 641), (MomentFeatures.EMBEDDING, 513)],
)
def test_feature_counts_of_the_default_student(which: MomentFeatures, p: int) -> None:
    assert num_moment_features((512, 256, 128), 512, which) == p


def test_targets_are_kappa_times_the_centred_one_hot_label() -> None:
    targets = moment_targets(np.array([1]), None, num_classes=4, kappa=8.0, beta=0.0)
    np.testing.assert_array_equal(targets, [[-2.0, 6.0, -2.0, -2.0]])


def test_beta_mixes_in_the_teacher() -> None:
    # ỹ = ¾·(1, 0) + ¼·(0, 1) = (0.75, 0.25); minus ½, times 8.
    targets = moment_targets(np.array([0]), np.array([[0.0, 1.0]]), num_classes=2, kappa=8.0, beta=0.25)
    np.testing.assert_array_equal(targets, [[2.0, -2.0]])


def test_beta_without_a_teacher_is_refused() -> None:
    with pytest.raises(ValueError, match="out-of-fold"):
        moment_targets(np.array([0]), None, num_classes=2, kappa=8.0, beta=0.25)


def test_centring_removes_the_row_mean_and_nothing_softmax_sees() -> None:
    np.testing.assert_array_equal(centre(np.array([[1.0, 2.0, 6.0]])), [[-2.0, -1.0, 3.0]])


# -- sums --


def test_moments_by_hand() -> None:
    # z = (2, 1) with r = (1, -1) and z = (0, 1) with r = (3, -3).
    moments = accumulate(np.array([[2.0, 1.0], [0.0, 1.0]]), np.array([[1.0, -1.0], [3.0, -3.0]]))
    np.testing.assert_array_equal(moments.A, [[4.0, 2.0], [2.0, 2.0]])
    np.testing.assert_array_equal(moments.B, [[2.0, -2.0], [4.0, -4.0]])
    assert moments.n == 2
    assert moments.A.dtype == moments.B.dtype == np.float64


def test_moments_of_a_split_add_up_to_the_moments_of_the_whole() -> None:
    z, r = features(0, 200), np.random.default_rng(1).normal(size=(200, 3))
    whole, summed = accumulate(z, r), split_in_three(z, r)
    np.testing.assert_allclose(summed.A, whole.A, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(summed.B, whole.B, rtol=1e-9, atol=1e-9)
    assert summed.n == whole.n == 200


def test_summed_moments_give_the_pooled_ridge_solution() -> None:
    z, r = features(2, 200), np.random.default_rng(3).normal(size=(200, 3))
    summed = split_in_three(z, r)
    V = solve(summed.A, summed.B, 10.0)
    # Ridge as least squares on the pooled data, √λ·I appended: no normal equations involved.
    design = np.vstack([z.astype(np.float64), np.sqrt(10.0) * np.eye(z.shape[1])])
    pooled = np.linalg.lstsq(design, np.vstack([r, np.zeros((z.shape[1], 3))]), rcond=None)[0]
    np.testing.assert_allclose(V, pooled, rtol=1e-9, atol=1e-9)


def test_chunks_do_not_change_the_sums() -> None:
    z, r = features(4, 100), np.random.default_rng(5).normal(size=(100, 2))
    whole, chunked = accumulate(z, r), accumulate(z, r, chunk=7)
    np.testing.assert_allclose(chunked.A, whole.A, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(chunked.B, whole.B, rtol=1e-12, atol=1e-12)


def test_second_moments_are_exactly_symmetric() -> None:
    A = accumulate(features(6, 100, p=33), np.zeros((100, 2)), chunk=13).A
    np.testing.assert_array_equal(A, A.T)


def test_adding_in_sorted_order_hides_the_order_of_arrival() -> None:
    uploads = {k: accumulate(features(k, 20), np.ones((20, 2)) * k) for k in (3, 1, 2)}
    reordered = {k: uploads[k] for k in (2, 3, 1)}
    sums = []
    for arrived in (uploads, reordered):
        total = arrived[min(arrived)]
        for k in sorted(arrived)[1:]:
            total = total + arrived[k]
        sums.append(total)
    assert sums[0].A.tobytes() == sums[1].A.tobytes()
    assert sums[0].B.tobytes() == sums[1].B.tobytes()


def test_no_samples_sum_to_zero() -> None:
    moments = accumulate(np.zeros((0, 3), dtype=np.float32), np.zeros((0, 2)))
    np.testing.assert_array_equal(moments.A, np.zeros((3, 3)))
    assert (moments.B.shape, moments.n) == ((3, 2), 0)


# -- packing --


def test_packing_by_hand() -> None:
    A = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 5.0], [3.0, 5.0, 6.0]])
    np.testing.assert_array_equal(pack_symmetric(A, 0), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    np.testing.assert_array_equal(pack_symmetric(A, 1), [1.0, 2.0, 3.0, 4.0, 5.0])
    np.testing.assert_array_equal(pack_symmetric(A, 2), [1.0, 2.0, 3.0])
    assert pack_symmetric(A, 3).size == 0


@settings(max_examples=40, deadline=None)
@given(p=st.integers(1, 12), known=st.integers(0, 12), seed=st.integers(0, 100))
def test_packing_comes_back_to_the_bit(p: int, known: int, seed: int) -> None:
    known = min(known, p)
    half = np.random.default_rng(seed).normal(size=(p, p))
    A = half + half.T
    block = A[p - known :, p - known :] if known else None
    rebuilt = unpack_symmetric(pack_symmetric(A, known), p, block)
    assert rebuilt.tobytes() == np.ascontiguousarray(A).tobytes()


def test_the_default_student_sends_861504_values_when_the_block_is_known() -> None:
    # q = 896 hidden units: 896·897/2 + 896·513; everything would be 1409·1410/2.
    A = np.zeros((1409, 1409), dtype=np.float32)
    assert pack_symmetric(A, 513).size == 401_856 + 459_648 == 861_504
    assert pack_symmetric(A, 0).size == 993_345


def test_the_block_of_embedding_and_one_does_not_depend_on_the_student() -> None:
    rng = np.random.default_rng(0)
    h = rng.normal(size=(30, 4))
    a, b = (
        accumulate(moment_vector([rng.normal(size=(30, 3))], h, MomentFeatures.HIDDEN), np.zeros((30, 2))).A
        for _ in range(2)
    )
    np.testing.assert_array_equal(a[-5:, -5:], b[-5:, -5:])
    np.testing.assert_array_equal(unpack_symmetric(pack_symmetric(b, 5), 8, a[-5:, -5:]), b)


def test_a_wrong_number_of_values_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 6 packed values"):
        unpack_symmetric(np.zeros(5), 3, None)


# -- solution --


def test_the_solution_by_hand() -> None:
    # A = diag(1, 3), λ = 1: halves the first row, quarters the second.
    A, B = np.diag([1.0, 3.0]), np.array([[4.0, -4.0], [8.0, -8.0]])
    np.testing.assert_allclose(solve(A, B, 1.0), [[2.0, -2.0], [2.0, -2.0]], rtol=1e-15)


def test_solving_leaves_the_moments_alone_and_repeats_to_the_bit() -> None:
    moments = accumulate(features(8, 50), np.random.default_rng(9).normal(size=(50, 3)))
    before = (moments.A.tobytes(), moments.B.tobytes())
    first, second = solve(moments.A, moments.B, 1.0), solve(moments.A, moments.B, 1.0)
    assert (moments.A.tobytes(), moments.B.tobytes()) == before
    assert first.tobytes() == second.tobytes()


def test_definite_moments_are_left_alone_to_the_bit() -> None:
    moments = accumulate(features(10, 3, p=40), np.ones((3, 2)))
    before = moments.A.tobytes()
    make_definite(moments.A, 1.0)
    assert moments.A.tobytes() == before


@pytest.mark.scenario(12)
def test_moments_indefinite_within_what_validation_tolerates_are_solved() -> None:
    """Scenario 12: A + λI would be singular. Eigenvalues -1 and 2049, so 1e-3 of the diagonal, 1024, is enough."""
    A = np.array([[1024.0, 1025.0, 0.0], [1025.0, 1024.0, 0.0], [0.0, 0.0, 10.0]])
    make_definite(A, 1.0)
    assert np.linalg.eigvalsh(A).min() > -1.0
    np.testing.assert_allclose(A.diagonal(), [1024.0, 1024.0, 10.0], rtol=1.1e-3)
    assert np.abs(solve(A, np.array([[8.0], [-8.0], [0.0]]), 1.0)).max() < 1e4


def test_what_no_small_ridge_makes_definite_is_no_sum_of_moments() -> None:
    A = np.array([[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(ValueError, match="not positive semidefinite"):
        make_definite(A, 0.1)
    np.testing.assert_array_equal(A, [[1.0, 2.0], [2.0, 1.0]])


def test_one_sample_and_many_features_still_solve() -> None:
    moments = accumulate(features(10, 1, p=40), np.ones((1, 2)))
    assert np.all(np.isfinite(solve(moments.A, moments.B, 1.0)))


def test_a_correction_of_zero_changes_nothing() -> None:
    z, scores = features(11, 20), np.random.default_rng(12).normal(size=(20, 3))
    delta = apply_moments(z, np.zeros((z.shape[1], 3)))
    assert delta.dtype == np.float32
    assert (centre(scores) + delta).tobytes() == centre(scores).tobytes()


def test_the_correction_is_the_product_whatever_the_number_of_rows() -> None:
    z, V = features(13, 5000, p=4), np.random.default_rng(14).normal(size=(4, 2))
    np.testing.assert_allclose(apply_moments(z, V), z @ V, rtol=1e-5, atol=1e-6)


def test_a_student_without_knowledge_gets_the_closed_form_classifier() -> None:
    # S = 0 and two well separated classes: the first correction alone classifies.
    labels = np.arange(40) % 2
    h = np.where(labels[:, None] == 0, -2.0, 2.0) + np.random.default_rng(15).normal(size=(40, 3)) * 0.1
    z = moment_vector([], h, MomentFeatures.EMBEDDING)
    moments = accumulate(z, moment_targets(labels, None, 2, 8.0, 0.0) - centre(np.zeros((40, 2))))
    delta = apply_moments(z, solve(moments.A, moments.B, 1.0))
    np.testing.assert_array_equal(delta.argmax(axis=1), labels)
