"""What closed rounds add up to for every client."""

from __future__ import annotations

from typing import Any

import pytest

from fkd_server.history import History


def record(number: int, phase: str, **summary: Any) -> dict[str, Any]:
    usual = {"seconds": 1.0, "returned": ["a", "b"], "missing": [], "failed": {}}
    return {"round": number, "seconds": 1.0, "cohort": ["a", "b"], "phases": {phase: {**usual, **summary}}}


@pytest.mark.parametrize("phase", ["student", "exchange"])
def test_every_methods_training_counts_with_samples_and_weights(phase: str) -> None:
    history = History()
    for number in (1, 2):
        history.add(record(number, phase, samples={"a": 30, "b": 10}, weights={"a": 0.75, "b": 0.25}))
    history.add(record(3, phase, returned=["a"], missing=["b"], samples={"a": 30}, weights={"a": 1.0}))
    a, b = history.client("a"), history.client("b")
    assert (a.students, a.samples, a.weight, a.missed) == (3, 30, 1.0, 0)
    assert (b.students, b.samples, b.weight, b.missed) == (2, 10, 0.0, 1)
    assert dict(history.rounds(1, 1)[0].weights) == {"a": 0.75, "b": 0.25}


def test_a_round_without_training_leaves_the_last_weights() -> None:
    history = History()
    history.add(record(1, "student", samples={"a": 30}, weights={"a": 1.0}))
    history.add(record(0, "moments", class_counts={"a": [20, 10]}))
    assert (history.client("a").weight, history.client("a").class_counts) == (1.0, (20, 10))
