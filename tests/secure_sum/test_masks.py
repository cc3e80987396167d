"""Keys agree, seals hold, masks cancel."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fkd_common.secure_sum.masks import add_mask, agree, derive, private_key, public_bytes, seal, unseal


def test_two_keys_agree_on_the_same_secret() -> None:
    a, b = (private_key(os.urandom(16), "mask key") for _ in "ab")
    assert agree(a, public_bytes(b)) == agree(b, public_bytes(a))


def test_a_key_follows_from_its_secret_and_its_purpose() -> None:
    secret = bytes(16)
    assert public_bytes(private_key(secret, "mask key")) == public_bytes(private_key(secret, "mask key"))
    assert public_bytes(private_key(secret, "mask key")) != public_bytes(private_key(secret, "seal key"))


def test_derived_keys_differ_by_purpose_and_by_sum() -> None:
    made = {derive(bytes(16), purpose, context) for purpose in ("a", "b") for context in (b"1", b"2")}
    assert len(made) == 4


def test_a_public_key_of_low_order_is_refused() -> None:
    with pytest.raises(ValueError):
        agree(private_key(os.urandom(16), "mask key"), bytes(32))


def test_what_was_sealed_opens_with_the_same_key_and_for_the_same_sum_only() -> None:
    key, other = os.urandom(16), os.urandom(16)
    sealed = seal(key, b"both shares", b"sum 1")
    assert unseal(key, sealed, b"sum 1") == b"both shares"
    for wrong in ((other, sealed, b"sum 1"), (key, sealed, b"sum 2"), (key, sealed[:-1] + b"\0", b"sum 1")):
        with pytest.raises(ValueError, match="does not open"):
            unseal(*wrong)


def test_a_mask_hides_every_tensor_and_comes_off_again() -> None:
    values = {"b": np.zeros((3, 2), dtype=np.uint64), "a": np.zeros((), dtype=np.uint64)}
    add_mask(values, b"k" * 32)
    assert len({int(x) for array in values.values() for x in array.reshape(-1)}) == 7
    add_mask(values, b"k" * 32, subtract=True)
    assert all(not array.any() for array in values.values())


def test_a_mask_is_one_stream_across_pieces() -> None:
    """Made a mebibyte at a time; no two pieces may be alike."""
    values = {"x": np.zeros(2 * (1 << 17) + 5, dtype=np.uint64)}
    add_mask(values, b"k" * 32)
    assert len(np.unique(values["x"])) == values["x"].size


def test_the_stream_is_chacha20() -> None:
    """RFC 8439, A.1, test vector 1: an all-zero key, nonce and counter."""
    values = {"x": np.zeros(2, dtype=np.uint64)}
    add_mask(values, bytes(32))
    assert values["x"].tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
