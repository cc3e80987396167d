"""Refinement of the pooled moments: steps by hand, the optimum they go to, and gradients that nobody's samples have."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from fkd_common.method.moments import accumulate, apply_moments, centre, moment_targets, solve
from fkd_common.method.probabilities import log_softmax
from fkd_common.method.refinement import (
    Ascent,
    ascend,
    gradient,
    gradient_flaw,
    likelihood_residual,
    padded,
)

MU = 10.0
C, P = 3, 6


class Samples:
    """Features whose last column is 1, labels that they tell something about, and a student's scores."""

    def __init__(self, n: int, seed: int = 0, student: float = 0.0) -> None:
        rng = np.random.default_rng(seed)
        self.y = rng.integers(0, C, n)
        centres = np.random.default_rng(99).normal(size=(C, P))
        self.z = (centres[self.y] + rng.normal(size=(n, P))).astype(np.float32)
        self.z[:, -1] = 1.0
        self.logits = student * rng.normal(size=(n, C))

    def part(self, rows: slice) -> Samples:
        part = object.__new__(Samples)
        part.z, part.y, part.logits = self.z[rows], self.y[rows], self.logits[rows]
        return part

    def A(self) -> NDArray[np.float64]:
        return accumulate(self.z, np.zeros((len(self.z), C))).A

    def gradient(self, V: NDArray[np.float64]) -> NDArray[np.float32]:
        return gradient(self.z, likelihood_residual(self.logits, apply_moments(self.z, V), self.y))

    def ridge(self) -> NDArray[np.float64]:
        """Where the steps start from."""
        targets = moment_targets(self.y, None, C, 8.0, 0.0)
        sums = accumulate(self.z, targets - centre(self.logits))
        return solve(sums.A, sums.B, MU)

    def penalised(self, V: NDArray[np.float64]) -> float:
        """log-likelihood - ½ μ ‖V‖², which the steps maximise."""
        p = log_softmax(centre(self.logits) + self.z.astype(np.float64) @ V)
        return float(p[np.arange(len(self.y)), self.y].sum() - 0.5 * MU * (V**2).sum())


def refined(samples: Samples, steps: int, start: NDArray[np.float64] | None = None) -> Ascent:
    V = samples.ridge() if start is None else start
    at = Ascent(V, V)
    for _ in range(steps):
        at = ascend(at, samples.A(), samples.gradient(at.W).astype(np.float64), MU)
    return at


def test_two_steps_by_hand() -> None:
    """One constant feature, two samples of class 0 of 2, μ = 1: A = 2, so a step is (½·2 + 1)⁻¹ (G - W)."""
    z, y, logits = np.ones((2, 1), np.float32), np.array([0, 0]), np.zeros((2, 2))

    def G(V: NDArray[np.float64]) -> NDArray[np.float64]:
        return gradient(z, likelihood_residual(logits, z @ V, y)).astype(np.float64)

    zero = np.zeros((1, 2))
    np.testing.assert_array_equal(G(zero), [[1.0, -1.0]])  # 2 · (1 - ½)
    first = ascend(Ascent(zero, zero), np.array([[2.0]]), G(zero), 1.0)
    np.testing.assert_allclose(first.N, [[0.5, -0.5]])
    np.testing.assert_array_equal(first.W, first.N)  # no momentum yet
    assert first.t == pytest.approx((1 + 5**0.5) / 2)
    missed = 2 * (1 - 1 / (1 + np.exp(-1.0)))  # scores ½ and -½
    np.testing.assert_allclose(G(first.W), [[missed, -missed]], rtol=1e-6)
    second = ascend(first, np.array([[2.0]]), G(first.W), 1.0)
    N = 0.5 + 0.5 * (missed - 0.5)
    t = (1 + np.sqrt(1 + 4 * first.t**2)) / 2
    np.testing.assert_allclose(second.N, [[N, -N]], rtol=1e-6)
    np.testing.assert_allclose(second.W[0, 0], N + (first.t - 1) / t * (N - 0.5), rtol=1e-6)


def test_the_students_scores_are_centred_and_labels_are_what_is_missed() -> None:
    logits, delta = np.array([[5.0, 7.0, 9.0]]), np.array([[2.0, 0.0, -2.0]])
    residual = likelihood_residual(logits, delta, np.array([1]))  # S̃ = 0: a third each
    np.testing.assert_allclose(residual, [[-1 / 3, 2 / 3, -1 / 3]])


def test_a_gradient_is_a_sum_over_all_samples_whatever_their_number() -> None:
    """More rows than are turned into float64 at a time."""
    rng = np.random.default_rng(0)
    z, residual = rng.normal(size=(9000, 2)).astype(np.float32), rng.normal(size=(9000, C))
    found = gradient(z, residual)
    assert (found.dtype.name, found.shape) == ("float32", (2, C))
    np.testing.assert_allclose(found, z.astype(np.float64).T @ residual, rtol=1e-6)
    assert not gradient(z[:0], residual[:0]).any()


def test_the_steps_go_to_the_logistic_regression_of_the_pooled_data() -> None:
    samples = Samples(400)
    reference = LogisticRegression(C=1 / MU, fit_intercept=False, tol=1e-10, max_iter=10_000)
    reference.fit(samples.z.astype(np.float64), samples.y)
    np.testing.assert_allclose(refined(samples, 200).N, reference.coef_.T, atol=1e-5)


def test_with_a_student_they_correct_it_until_the_gradient_is_the_penaltys() -> None:
    samples = Samples(400, student=2.0)
    V = refined(samples, 200).N
    np.testing.assert_allclose(samples.gradient(V), MU * V, atol=1e-3)
    assert np.abs(V - refined(Samples(400), 200).N).max() > 0.1


@pytest.mark.parametrize("student", [0.0, 3.0])
def test_ten_steps_leave_little_to_gain(student: float) -> None:
    samples = Samples(400, student=student)
    start, best = samples.penalised(samples.ridge()), samples.penalised(refined(samples, 300).N)
    ten = samples.penalised(refined(samples, 10).N)
    assert start < ten <= best + 1e-6
    assert best - ten < 0.05 * (best - start)


def test_a_step_without_momentum_never_loses() -> None:
    """½ Σ z zᵀ is more than the curvature anywhere: from wherever a step begins, the likelihood does not fall."""
    samples = Samples(60, student=1.0)
    for seed in range(20):
        V = 3.0 * np.random.default_rng(seed).normal(size=(P, C))
        after = ascend(Ascent(V, V), samples.A(), samples.gradient(V).astype(np.float64), MU)
        assert samples.penalised(after.N) >= samples.penalised(V)


def test_data_in_parts_are_refined_as_if_they_were_pooled() -> None:
    samples = Samples(300, student=1.0)
    parts = [samples.part(rows) for rows in (slice(0, 7), slice(7, 120), slice(120, None))]
    start = samples.ridge()
    at = Ascent(start, start)
    for _ in range(10):
        G = np.sum([part.gradient(at.W).astype(np.float64) for part in parts], axis=0)
        at = ascend(at, np.sum([part.A() for part in parts], axis=0), G, MU)
    np.testing.assert_allclose(at.N, refined(samples, 10).N, rtol=1e-5, atol=1e-6)


# -- what no samples have --


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("n", [1, 2, 40])
def test_honest_gradients_have_no_flaw_wherever_they_are_asked_for(n: int, scale: float) -> None:
    samples = Samples(n, seed=n, student=3.0)
    G = samples.gradient(scale * np.random.default_rng(1).normal(size=(P, C)))
    assert gradient_flaw(G, n, samples.A().diagonal()) is None
    assert gradient_flaw(G, n, 5.0 * samples.A().diagonal()) is None


def test_the_largest_gradient_that_samples_can_have_is_no_flaw() -> None:
    """n samples of one feature value 3, certain of the wrong class: |G| = 3n, the root of 9n · n."""
    z, y = np.full((50, 1), 3.0, np.float32), np.zeros(50, int)
    G = gradient(z, likelihood_residual(np.tile([-1e3, 1e3], (50, 1)), np.zeros((50, 2)), y))
    np.testing.assert_array_equal(G, [[150.0, -150.0]])
    assert gradient_flaw(G, 50, np.array([450.0])) is None
    flaw = gradient_flaw(G * np.float32(1.01), 50, np.array([450.0]))
    assert flaw == "row 0 of the gradient has 152; 50 samples allow 150"


@pytest.mark.parametrize("values", [[1.0, 1.0, 1.0], [2.0, -1.0, 0.0]])
def test_a_gradient_whose_rows_do_not_sum_to_zero_is_a_lie(values: list[float]) -> None:
    G = np.zeros((P, C), np.float32)
    G[2] = values
    flaw = gradient_flaw(G, 40, Samples(40).A().diagonal())
    assert flaw == "row 2 of the gradient does not sum to 0 over classes"


def test_a_client_that_claims_fewer_samples_than_its_gradient_has_is_found_out() -> None:
    samples = Samples(40)
    G = samples.gradient(samples.ridge() * -100.0)  # wrong about nearly everything
    flaw = gradient_flaw(G, 1, samples.A().diagonal())
    assert flaw is not None
    assert "1 samples allow" in flaw


def test_without_samples_there_is_no_gradient() -> None:
    assert gradient_flaw(np.zeros((P, C), np.float32), 0, np.ones(P)) is None
    assert gradient_flaw(np.eye(P, C, dtype=np.float32), 0, np.ones(P)) is not None


def test_a_solution_of_the_embedding_alone_gives_hidden_features_no_weight() -> None:
    V = np.array([[1.0, -1.0], [2.0, -2.0]], np.float32)
    wide = padded(V, 5)
    np.testing.assert_array_equal(wide, [[0, 0], [0, 0], [0, 0], [1, -1], [2, -2]])
    assert wide.dtype == np.float32
    assert padded(V, 2) is V
