"""A few bits per value after a random rotation, unbiased: DRIVE with one bit, EDEN with more.

Vargaftik et al., "DRIVE", NeurIPS 2021, and "EDEN", ICML 2022. Blocks of 1,024 values are rotated by a Hadamard
matrix with random signs, after which they are distributed like a Gaussian whatever they were. Every value becomes the
nearest of the 2^b levels that are best for a Gaussian (Lloyd-Max), and the block's scale ‖x‖²/⟨Rx, Q(Rx)⟩ makes the
mean over rotations x itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 1024

_POSITIVE_LEVELS = {
    1: (0.7978845608,),
    4: (0.1283950, 0.3880483, 0.6567591, 0.9423403, 1.2562312, 1.6180464, 2.0690169, 2.7326356),
}
"""Lloyd-Max levels of a standard normal above 0, by bits per value."""


def num_blocks(count: int) -> int:
    """Blocks that so many values fill; the last is padded with zeros."""
    return -(-count // BLOCK)


def rotate_and_quantise(
    values: NDArray[np.float32], bits: int, seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Codes of all values, and a scale per block.

    Args:
        values: 1-D, finite.
        bits: 1 or 4 per value.
        seed: Of the random signs, below 2^64.

    Returns:
        (blocks * BLOCK * bits / 8,) uint8 codes, packed, and (blocks,) float32 scales.
    """
    x = np.zeros((num_blocks(len(values)), BLOCK), dtype=np.float32)
    x.reshape(-1)[: len(values)] = values
    rotated = _hadamard(x * _signs(len(x), seed))
    length = np.linalg.norm(rotated, axis=1)
    unit = rotated * (np.sqrt(BLOCK) / np.where(length > 0, length, 1.0))[:, None]
    levels = _levels(bits)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, unit).astype(np.uint8)
    fit = np.einsum("ij,ij->i", rotated, levels[codes])
    scales = np.where(fit > 0, length**2 / np.where(fit > 0, fit, 1.0), 0.0)
    return _packed(codes, bits), scales.astype(np.float32)


def restore(
    packed: NDArray[np.uint8], scales: NDArray[np.float32], bits: int, seed: int, count: int
) -> NDArray[np.float32]:
    """The values that codes and scales stand for, (count,) float32."""
    codes = _unpacked(packed, bits).reshape(len(scales), BLOCK)
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # what is not finite is refused where values are checked
        rotated = _levels(bits)[codes] * scales[:, None]
        return (_hadamard(rotated) * _signs(len(scales), seed)).reshape(-1)[:count]


def packed_size(count: int, bits: int) -> int:
    """Bytes of the codes of so many values."""
    return num_blocks(count) * BLOCK * bits // 8


def _levels(bits: int) -> NDArray[np.float32]:
    positive = np.array(_POSITIVE_LEVELS[bits], dtype=np.float32)
    return np.concatenate([-positive[::-1], positive])


def _signs(blocks: int, seed: int) -> NDArray[np.float32]:
    """(blocks, BLOCK) of ±1; from raw words, which are the same in every release of numpy."""
    words = np.random.PCG64(seed).random_raw(blocks * BLOCK // 64)
    bits = np.unpackbits(words.astype("<u8").view(np.uint8)).reshape(blocks, BLOCK)
    return np.asarray(bits * np.float32(2) - np.float32(1), dtype=np.float32)


def _hadamard(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Every row times the orthonormal Hadamard matrix, which is its own inverse."""
    rows, size = x.shape
    half = 1
    while half < size:
        pairs = x.reshape(rows, size // (2 * half), 2, half)
        x = np.concatenate(
            [pairs[:, :, :1] + pairs[:, :, 1:], pairs[:, :, :1] - pairs[:, :, 1:]], axis=2
        ).reshape(rows, size)
        half *= 2
    return np.asarray(x / np.sqrt(np.float32(size)), dtype=np.float32)


def _packed(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    flat = codes.reshape(-1)
    if bits == 1:
        return np.packbits(flat)
    return np.asarray(flat[::2] << 4 | flat[1::2], dtype=np.uint8)


def _unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    if bits == 1:
        return np.unpackbits(packed)
    codes = np.empty(2 * len(packed), dtype=np.uint8)
    codes[::2], codes[1::2] = packed >> 4, packed & 15
    return codes
