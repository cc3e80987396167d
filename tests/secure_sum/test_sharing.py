"""Shares of a secret: any threshold of them suffices, and what the threshold is."""

from __future__ import annotations

import itertools

import pytest

from fkd_common.secure_sum.sharing import ThresholdRule, combine, split

SECRET = bytes(range(16))


def test_any_three_of_five_shares_give_the_secret_back() -> None:
    shares = split(SECRET, 3, 5)
    for chosen in itertools.combinations(range(5), 3):
        assert combine({i + 1: shares[i] for i in chosen}, 3) == SECRET


def test_two_of_five_shares_give_something_else() -> None:
    shares = split(SECRET, 3, 5)
    assert combine({1: shares[0], 2: shares[1]}, 2) != SECRET


def test_fewer_shares_than_the_threshold_are_refused() -> None:
    with pytest.raises(ValueError, match="expected 3 shares of a secret, got 2"):
        combine({1: SECRET, 2: SECRET}, 3)


def test_no_two_sharings_of_a_secret_are_alike() -> None:
    assert set(split(SECRET, 2, 3)).isdisjoint(split(SECRET, 2, 3))


@pytest.mark.parametrize(
    "participants, share, at_least, needed",
    [
        (3, 2 / 3, 2, 2),
        (10, 2 / 3, 2, 7),
        (10, 0.51, 2, 6),
        (4, 0.51, 2, 3),  # half of 4 is not more than half
        (2, 0.51, 2, 2),
        (1, 1.0, 1, 2),  # a sum of one is no sum
        (6, 2 / 3, 5, 5),
    ],
)
def test_the_threshold_is_a_share_but_more_than_half_and_never_below_the_smallest_cohort(
    participants: int, share: float, at_least: int, needed: int
) -> None:
    assert ThresholdRule(share, at_least).of(participants) == needed
