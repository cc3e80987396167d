"""Mistakes in a method's own code are one sentence with the line they were made in."""

from __future__ import annotations

import inspect
import re
from typing import Any

import numpy as np
import pytest

from fkd_client.published_scorer import scorer_of
from fkd_common.config import RunConfig
from fkd_common.errors import DataError, MethodError
from fkd_common.exchange_method import Aggregate, Federation, NoAggregateError
from fkd_common.method_registry import method_of
from fkd_common.model_file import ExchangeHeader, ExchangeModel
from fkd_common.own_code import OwnCode, check_aggregate, check_groups, check_layout, check_scores

from .plain import PLAIN, Plain, install

OWN = OwnCode(PLAIN, Plain)
W = {"w": np.zeros(3, np.float32)}
LAYOUT = Plain.upload_layout(None, 1, 1)  # type: ignore[arg-type]  # which it does not look at


def line_of(function: Any) -> int:
    return inspect.getsourcelines(function)[1]


def test_the_line_is_the_methods_and_not_that_of_the_library_it_called() -> None:
    with (
        pytest.raises(MethodError) as raised,
        OWN.at_work("local_update", 3),
    ):
        Plain.local_update(None, None, {"model": {"w": object()}}, 1)  # type: ignore[arg-type,dict-item]
    line = line_of(Plain.local_update) + 1
    assert str(raised.value) == (
        f"method plain, round 3 (tests/methods/plain.py:{line}): local_update failed with TypeError: unsupported "
        "operand type(s) for +: 'object' and 'int'"
    )


@pytest.mark.parametrize("error", [DataError("ours"), NoAggregateError("nobody's")])
def test_errors_that_are_nobodys_mistake_pass(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), OWN.at_work("aggregate"):
        raise error


def test_a_long_message_of_many_lines_is_one_short_line() -> None:
    with pytest.raises(MethodError) as raised, OWN.at_work("aggregate"):
        raise RuntimeError("a\nb " + "c" * 1000)
    assert ": a b ccc" in str(raised.value)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"model": W}, "dict; expected an Aggregate"),
        (Aggregate({"model": np.zeros(3)}), "group 'model' as ndarray"),  # type: ignore[dict-item]
        (Aggregate({"model": {"w": [0.0]}}), "'w' as list; expected a NumPy array"),  # type: ignore[dict-item]
        (Aggregate({"model": {}}), "another layout: tensor names differ: missing ['w'], unexpected none"),
        (Aggregate({"model": {"v": W["w"]}}), "missing ['w'], unexpected ['v']"),
        (Aggregate({"model": {"w": np.zeros(2, np.float32)}}), "expected shape (3,), got (2,)"),
        (Aggregate({"model": {"w": np.zeros(3)}}), "expected dtype float32, got float64"),
        (Aggregate({"other": {"w": np.array([np.nan])}}), "group 'other' with NaN or infinity in 'w'"),
        (Aggregate({"other": {"w": np.array(["text"])}}), "'w' of dtype <U4"),
        (Aggregate({"a|b": W}), "a group named 'a|b'"),
        (Aggregate({}, {"loss": np.float32(1)}), "a record that JSON cannot hold: Object of type float32"),
        (Aggregate({}, {"seconds": 1}), "a record with seconds, which the round's record has already"),
        (Aggregate({}, {"weights": [0.5, 0.5]}), "weights or excluded are not by client"),
    ],
)
def test_what_an_aggregate_must_not_be_is_said(result: Any, said: str) -> None:
    line = line_of(Plain.aggregate)
    with pytest.raises(MethodError, match=re.escape(said)) as raised, OWN.at_work("aggregate", 1):
        check_aggregate(result, LAYOUT)
    assert f"plain.py:{line}): aggregate returned " in str(raised.value)


def test_what_may_be_returned_is_not_refused() -> None:
    check_aggregate(Aggregate({"model": W, "gone": {}}, {"weights": {"a": 0.5}, "steps": 3}), LAYOUT)
    check_groups(
        "memory", {"trees": {"bytes": np.zeros(2, np.uint8), "loss": np.array(np.inf)}}, finite=False
    )
    check_layout("an upload", W, LAYOUT)
    check_scores(np.zeros((2, 3), np.float32), 2, 3)


def test_a_constructor_that_does_not_call_its_base_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr(Plain, "__init__", lambda self, federation: None)
    nothing: Any = np.zeros((1, 2), np.float32)
    with pytest.raises(MethodError, match=r"__init__ returned without having called super\(\).__init__"):
        method_of(Federation(RunConfig(method=PLAIN), 2, nothing, nothing, bytes))


def test_scores_of_a_published_model_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    header = ExchangeHeader(classes=("a", "b"), config=RunConfig(method=PLAIN), extractor_sha256="e" * 64)
    scorer = scorer_of(ExchangeModel(header, W), b"")
    assert scorer.candidate_logits(np.zeros((5, 2), np.float32))[scorer.published].shape == (5, 2)
    monkeypatch.setattr(Plain, "scores", lambda self, model, inputs, device: np.zeros(len(inputs)))
    with pytest.raises(MethodError, match=r"scores returned scores of shape \(5,\); expected \(5, 2\)"):
        scorer.candidate_logits(np.zeros((5, 2), np.float32))
