"""Which candidate a federated vote publishes, on counts whose standard error is a round number."""

from __future__ import annotations

from fkd_common.method.vote import elected

# A share of one half of 100 samples has the standard error 0.05: five right answers.
BEST = 50.0


def test_the_preferred_is_kept_up_to_one_standard_error_below_the_best() -> None:
    assert elected({"student": BEST, "refined": 45.0}, 100, "refined") == "refined"
    assert elected({"student": BEST, "refined": 44.9}, 100, "refined") == "student"


def test_it_is_published_when_it_is_the_best() -> None:
    assert elected({"student": 49.0, "refined": BEST}, 100, "refined") == "refined"


def test_more_samples_tell_smaller_differences() -> None:
    assert elected({"student": 5000.0, "refined": 4950.0}, 10_000, "refined") == "refined"
    assert elected({"student": 5000.0, "refined": 4949.0}, 10_000, "refined") == "student"


def test_without_the_preferred_the_most_right_answers_count_and_of_equals_the_first() -> None:
    assert elected({"student": 40.0, "a": BEST, "b": BEST}, 100, "refined") == "a"


def test_a_best_that_is_always_right_has_no_error() -> None:
    assert elected({"student": 100.0, "refined": 99.0}, 100, "refined") == "student"
    assert elected({"student": 100.0, "refined": 100.0}, 100, "refined") == "refined"
