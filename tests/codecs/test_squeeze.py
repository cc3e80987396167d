"""What was squeezed comes back bit by bit, and nothing claimed by a frame is believed."""

import numpy as np
import pytest
import zstandard

from fkd_common.codecs.squeeze import Parts, expand, squeeze
from fkd_common.errors import InvalidUploadError


@pytest.mark.parametrize("dtype", ["int8", "int16", "float16", "float32"])
@pytest.mark.parametrize("count", [0, 1, 1000])
def test_every_bit_comes_back(dtype, count):
    values = (np.random.default_rng(0).normal(size=count) * 50).astype(dtype)
    back = expand(squeeze(values), count, dtype)
    assert back.dtype == values.dtype
    np.testing.assert_array_equal(back, values)


def test_values_of_one_magnitude_take_less_room():
    values = np.linspace(1.0, 1.5, 10_000, dtype=np.float16)  # one exponent: the high byte hardly changes
    assert squeeze(values).nbytes < 0.75 * values.nbytes


@pytest.mark.scenario(12)
def test_a_frame_that_unfolds_to_gigabytes_is_not_unfolded():
    bomb = squeeze(np.zeros(100_000_000, np.int8))
    assert bomb.nbytes < 20_000
    with pytest.raises(InvalidUploadError, match="holds 100000000 bytes; expected 10"):
        expand(bomb, 10, "int8")


@pytest.mark.scenario(12)
def test_a_frame_that_holds_more_than_it_says_is_not_unfolded():
    bomb = bytearray(squeeze(np.zeros(100_000_000, np.int8)).tobytes())
    place = bomb.index((100_000_000).to_bytes(4, "little"))
    bomb[place : place + 4] = (10).to_bytes(4, "little")
    with pytest.raises(InvalidUploadError, match="zstd"):
        expand(np.frombuffer(bytes(bomb), np.uint8), 10, "int8")


@pytest.mark.scenario(12)
def test_a_frame_that_does_not_say_how_much_it_holds_is_refused():
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=-1)
    frame = compressor.compress(b"x" * 1000) + compressor.flush()
    with pytest.raises(InvalidUploadError, match="an untold number of bytes; expected 1000"):
        expand(np.frombuffer(frame, np.uint8), 1000, "int8")


_FIVE = squeeze(np.arange(5, dtype=np.int8)).tobytes()
_EMPTY = zstandard.ZstdCompressor().compress(b"")
_SKIPPED = b"\x50\x2a\x4d\x18\x02\0\0\0ab"


@pytest.mark.scenario(21)
@pytest.mark.parametrize("more", [b"x", _FIVE, _EMPTY, _SKIPPED])
def test_nothing_may_follow_a_frame(more):
    with pytest.raises(InvalidUploadError, match="zstd"):
        expand(np.frombuffer(_FIVE + more, np.uint8), 5, "int8")
    with pytest.raises(InvalidUploadError):
        expand(np.frombuffer(more, np.uint8), 0, "int8")


@pytest.mark.parametrize("frame", [b"", b"nonsense", _FIVE[:-1]])
def test_a_damaged_frame_is_refused(frame):
    with pytest.raises(InvalidUploadError):
        expand(np.frombuffer(frame, np.uint8), 5, "int8")


@pytest.mark.parametrize(
    "packed, reason",
    [
        ({}, "WRONG_NAMES"),
        ({"a": np.zeros(2, np.float64)}, "WRONG_DTYPE"),
        ({"a": np.zeros((2, 1), np.float32)}, "WRONG_SHAPE"),
        ({"a": np.zeros(2, np.float32), "b": np.zeros(1)}, "WRONG_NAMES"),
    ],
)
def test_parts_must_be_those_that_are_expected(packed, reason):
    parts = Parts(packed)
    with pytest.raises(InvalidUploadError) as raised:
        parts.take("a", (2,), "float32")
        parts.finish()
    assert raised.value.reason == reason


def test_a_squeezed_tensor_has_one_dimension():
    with pytest.raises(InvalidUploadError, match="one dimension"):
        Parts({"a": np.zeros((2, 2), np.uint8)}).take_squeezed("a", (4,), "int8")
