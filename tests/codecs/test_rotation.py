"""DRIVE and EDEN: the rotation is one, the errors are those of the papers, and their mean is none."""

import numpy as np
import pytest

from fkd_common.codecs.rotation import BLOCK, packed_size, restore, rotate_and_quantise


def coded(values, bits, seed):
    codes, scales = rotate_and_quantise(values, bits, seed)
    assert codes.nbytes == packed_size(len(values), bits)
    return restore(codes, scales, bits, seed, len(values))


@pytest.mark.parametrize(("bits", "expected"), [(1, np.pi / 2 - 1), (4, 0.0095)])
def test_the_error_is_that_of_the_best_quantiser_of_a_gaussian(bits, expected):
    """DRIVE, Theorem 3: π/2 - 1 with one bit; Lloyd-Max with 16 levels leaves 0.0095 of the variance."""
    values = np.random.default_rng(0).laplace(size=64 * BLOCK).astype(np.float32)
    error = np.sum((coded(values, bits, 7) - values) ** 2) / np.sum(values**2)
    assert error == pytest.approx(expected, rel=0.05)


def test_one_large_value_does_not_drown_the_others():
    """Without the rotation, 16 levels of the largest magnitude would make all others 0."""
    values = np.ones(BLOCK, np.float32)
    values[3] = 30.0
    back = coded(values, 4, 1)
    assert abs(back[3] - 30.0) < 1.0
    assert abs(np.delete(back, 3).mean() - 1.0) < 0.1


@pytest.mark.parametrize("bits", [1, 4])
def test_the_mean_over_rotations_is_the_vector_itself(bits):
    values = np.random.default_rng(2).normal(size=BLOCK).astype(np.float32)
    one = coded(values, bits, 0)
    mean = np.mean([coded(values, bits, seed) for seed in range(200)], axis=0)
    left = np.sum((mean - values) ** 2) / np.sum((one - values) ** 2)
    assert left < 2 / 200


def test_padding_is_not_given_back_and_zeros_stay_zeros():
    values = np.arange(5, dtype=np.float32)
    assert coded(values, 4, 3).shape == (5,)
    np.testing.assert_array_equal(coded(np.zeros(BLOCK + 1, np.float32), 1, 3), np.zeros(BLOCK + 1))


def test_signs_are_the_same_on_every_machine():
    """Raw words of PCG64, whose values numpy promises."""
    values = np.zeros(BLOCK, np.float32)
    values[0] = 1.0
    codes, _ = rotate_and_quantise(values, 1, 12345)
    assert np.unpackbits(codes)[0] == int(np.random.PCG64(12345).random_raw() & 255) >> 7
