"""Moments and matrices in 16 bits: what stays exact, what stays plausible, and what is refused."""

import numpy as np
import pytest

from fkd_common.choices import StatisticsCodec
from fkd_common.codecs.statistics import pack_moments, pack_statistics, unpack_moments, unpack_statistics
from fkd_common.config import RunConfig
from fkd_common.errors import InvalidUploadError
from fkd_common.method.moment_checks import moment_flaw
from fkd_common.method.moments import accumulate, pack_symmetric, unpack_symmetric
from fkd_common.method.refinement import gradient_flaw
from fkd_common.method.student_layout import TensorSpec

INT16, FP32 = StatisticsCodec.INT16, StatisticsCodec.FP32
D, HIDDEN, C, N = 6, 9, 3, 40
P, BLOCK = HIDDEN + D + 1, D + 1


def features():
    """Hidden features of very different size, one nearly and one quite dead; embeddings; the constant."""
    rng = np.random.default_rng(0)
    hidden = np.maximum(rng.normal(size=(N, HIDDEN)), 0) * 10.0 ** np.arange(-6, 3)
    hidden[:, 4] = 0.0
    return np.concatenate([hidden, rng.normal(size=(N, D)), np.ones((N, 1))], axis=1).astype(np.float32)


def sums(block):
    z = features()
    residual = np.random.default_rng(1).normal(size=(N, C))
    moments = accumulate(z, residual - residual.mean(axis=1, keepdims=True))
    A = pack_symmetric(moments.A, block).astype(np.float32)
    return moments.A, A, moments.B.astype(np.float32), np.square(z[:, -BLOCK:], dtype=np.float64).sum(axis=0)


@pytest.mark.parametrize("block", [0, BLOCK])
def test_moments_come_back_in_units_of_their_features(block):
    whole, A, B, squares = sums(block)
    packed = pack_moments(A, B, squares, INT16, np.random.default_rng(0))
    back = unpack_moments(dict(packed), P, C, block, INT16)
    known = whole[P - block :, P - block :] if block else None
    rebuilt = unpack_symmetric(back["A"], P, known)
    scale = np.sqrt(np.maximum(np.diag(whole), 1e-12))
    assert np.abs((rebuilt - whole) / scale / scale[:, None]).max() < 1 / 32767
    np.testing.assert_array_equal(np.diag(rebuilt).astype(np.float32), np.diag(whole).astype(np.float32))
    np.testing.assert_array_equal(rebuilt[:, -1].astype(np.float32), whole[:, -1].astype(np.float32))
    np.testing.assert_allclose(back["B"], B, atol=2 * float(np.abs(B).max()) / 32767)


def test_where_everything_is_known_only_b_travels():
    _, A, B, _ = sums(P)
    packed = pack_moments(A, B, np.zeros(P), INT16, np.random.default_rng(0))
    assert len(unpack_moments(dict(packed), P, C, P, INT16)["A"]) == 0


def test_they_stay_plausible():
    _, A, B, squares = sums(0)
    back = unpack_moments(dict(pack_moments(A, B, squares, INT16, np.random.default_rng(0))), P, C, 0, INT16)
    rebuilt = unpack_symmetric(back["A"], P, None)
    assert moment_flaw(rebuilt, back["B"], N, D, RunConfig(), None) is None


@pytest.mark.scenario(37)
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.1])
def test_those_of_a_few_samples_that_are_nearly_alike_stay_plausible(spread):
    """All products are then nearly equal: rounded to the nearest step, their errors would add up to a flaw."""
    rng, p, n = np.random.default_rng(5), 3000, 7
    z = (rng.normal(size=p) + spread * rng.normal(size=(n, p))).astype(np.float32)
    z[:, -1] = 1.0
    residual = rng.normal(size=(n, C))
    moments = accumulate(z, residual - residual.mean(axis=1, keepdims=True))
    A, B = pack_symmetric(moments.A, 0).astype(np.float32), moments.B.astype(np.float32)
    packed = pack_moments(A, B, np.diag(moments.A)[-1:], INT16, np.random.default_rng(0))
    back = unpack_moments(dict(packed), p, C, 0, INT16)
    rebuilt = unpack_symmetric(back["A"], p, None)
    assert moment_flaw(rebuilt, back["B"], n, 512, RunConfig(statistics_codec=INT16), None) is None


@pytest.mark.scenario(37)
@pytest.mark.parametrize("classes_here", [1, 2, 5])
@pytest.mark.parametrize(("num_classes", "n"), [(10, 1), (100, 5), (100, 300), (1000, 20)])
def test_a_site_of_few_classes_of_many_stays_plausible(num_classes, n, classes_here):
    rng, d = np.random.default_rng(3), 64
    y = rng.integers(0, classes_here, n)
    h = rng.normal(size=(num_classes, d))[y] + 0.7 * rng.normal(size=(n, d))
    z = np.concatenate([h, np.ones((n, 1))], axis=1).astype(np.float32)
    moments = accumulate(z, np.eye(num_classes)[y] - 1 / num_classes)
    A, B = pack_symmetric(moments.A, 0).astype(np.float32), moments.B.astype(np.float32)
    packed = pack_moments(A, B, np.diag(moments.A)[-d - 1 :], INT16, rng)
    back = unpack_moments(dict(packed), d + 1, num_classes, 0, INT16)
    rebuilt = unpack_symmetric(back["A"], d + 1, None)
    assert moment_flaw(rebuilt, back["B"], n, d, RunConfig(statistics_codec=INT16), None) is None
    G = unpack_statistics(
        dict(pack_statistics({"G": B}, INT16)), {"G": TensorSpec(B.shape, "float32")}, INT16
    )["G"]
    assert gradient_flaw(G, n, np.diag(moments.A)) is None


def test_they_take_half_the_room():
    rng = np.random.default_rng(0)
    moments = accumulate(rng.normal(size=(300, 200)).astype(np.float32), rng.normal(size=(300, C)))
    A, B = pack_symmetric(moments.A, 0).astype(np.float32), moments.B.astype(np.float32)
    sizes = [
        sum(t.nbytes for t in pack_moments(A, B, np.diag(moments.A)[-2:], c, rng).values())
        for c in (FP32, INT16)
    ]
    assert sizes[1] < 0.52 * sizes[0]


def test_matrices_come_back_nearly():
    V = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    layout = {"V": TensorSpec((7, 4), "float32")}
    assert unpack_statistics(dict(pack_statistics({"V": V}, FP32)), layout, FP32)["V"] is V
    back = unpack_statistics(dict(pack_statistics({"V": V}, INT16)), layout, INT16)["V"]
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, V, atol=2 * float(np.abs(V).max()) / 32767)


@pytest.mark.scenario(10, 11)
@pytest.mark.parametrize(
    "change",
    [
        lambda packed: packed.pop("A"),
        lambda packed: packed.pop("B/exponents"),
        lambda packed: packed.update(more=np.zeros(1, np.float32)),
        lambda packed: packed.update({"A/diagonal": packed["A/diagonal"][:-1]}),
        lambda packed: packed.update({"A/constant": packed["A/constant"].astype(np.float64)}),
    ],
)
def test_moments_packed_otherwise_are_refused(change):
    _, A, B, squares = sums(0)
    packed = dict(pack_moments(A, B, squares, INT16, np.random.default_rng(0)))
    change(packed)
    with pytest.raises(InvalidUploadError):
        unpack_moments(packed, P, C, 0, INT16)


@pytest.mark.scenario(10)
def test_squares_below_0_leave_moments_that_are_refused():
    _, A, B, squares = sums(0)
    packed = dict(pack_moments(A, B, squares, INT16, np.random.default_rng(0)))
    packed["A/diagonal"] = -packed["A/diagonal"]
    assert not np.isfinite(unpack_moments(packed, P, C, 0, INT16)["A"]).all()
