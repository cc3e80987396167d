"""A coordinator whose method is wrong stops with one sentence, and goes on in the same round once that is mended."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fkd_common.errors import ExitCode, InvalidUploadError, MethodError, UnreachableError
from fkd_common.exchange_method import MODEL, Aggregate
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import Method
from fkd_common.tensors import encode
from fkd_server.operator.tables import status_view
from fkd_server.run import Run, assemble
from tests.methods.plain import PLAIN, Plain, install

from .test_run_folder import settings
from .tiny import Site, inline

UPLOAD = {"w": np.ones(3, np.float32)}


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def start(prepared: Path, **changes: Any) -> Run:
    """The run, or after its coordinator stopped, the same run again."""
    keys = {
        "method": PLAIN,
        "correction": ("anchors", "moments"),
        "correction_at_start": True,
        "refine_steps": 10,
    }
    keys |= {"lambda_grid": (1.0, 10.0, 100.0, 1000.0), "anchor_lambda_grid": (10.0, 100.0, 1000.0, 10000.0)}
    return assemble(settings(prepared, **{**keys, **changes}), prepared.parent / "cache")


def answer(run: Run) -> Callable[[Method, bytes], bytes]:
    return lambda method, raw: run.service.handle(method, raw) or b""


def submit(site: Site, round_number: int, n: int = 10) -> Any:
    key = site.key(round_number, types.PHASE_EXCHANGE)
    return site.call("SubmitExchange", key=key, upload=inline(encode(UPLOAD)), num_samples=n)


def raising(self: Plain, *given: Any) -> Any:
    return {}["speed"]


def returning(result: Any) -> Callable[..., Any]:
    return lambda self, *given: result


@pytest.mark.parametrize(
    ("aggregate", "said"),
    [
        (raising, "aggregate failed with KeyError: 'speed'"),
        (returning(Aggregate({MODEL: {"w": np.full(3, np.nan, np.float32)}})), "aggregate returned an Aggregate"),
        (returning(Aggregate({MODEL: {"w": np.zeros(4, np.float32)}})), "expected shape (3,), got (4,)"),
        (returning(Aggregate({}, {"loss": np.float32(1)})), "a record that JSON cannot hold"),
        (returning(None), "aggregate returned NoneType; expected an Aggregate"),
    ],
)  # fmt: skip
def test_a_wrong_aggregate_stops_the_coordinator_and_the_mended_one_goes_on_in_the_round(
    aggregate: Any, said: str, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(prepared)
    a, b = (Site(name, answer(run)) for name in "ab")
    a.poll(), b.poll()
    mended = Plain.aggregate
    monkeypatch.setattr(Plain, "aggregate", aggregate)
    submit(a, 1)
    assert submit(b, 1).receipt  # counts, whatever becomes of the round
    with pytest.raises(MethodError) as raised:
        run.service.tick()
    assert raised.value.exit_code is ExitCode.FAILURE
    assert str(raised.value).startswith("method plain, round 1 (tests/server/test_method_faults.py:")
    assert said in str(raised.value)
    assert str(raised.value).endswith(
        "; run run-1 is kept: mend the method, and the same command goes on in this round"
    )
    with pytest.raises(UnreachableError, match="code of method plain has failed") as told:
        a.poll()
    assert "speed" not in str(told.value)
    run.close()

    monkeypatch.setattr(Plain, "aggregate", mended)
    run = start(prepared)
    a.answer = b.answer = answer(run)
    assert a.poll().task.key.round == 2
    assert [record["phases"]["exchange"]["returned"] for record, _ in run.store.rounds()] == [["a", "b"]]
    run.close()


def forgetful(self: Plain) -> Any:
    """Does not take what it is called with."""
    return None


@pytest.mark.parametrize(("wrong", "line"), [(raising, 1), (forgetful, 0)])
def test_the_line_is_where_the_method_failed_or_else_where_its_function_begins(
    wrong: Any, line: int, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(prepared, min_clients=1)
    a = Site("a", answer(run))
    a.poll()
    monkeypatch.setattr(Plain, "aggregate", wrong)
    submit(a, 1)
    line += inspect.getsourcelines(wrong)[1]
    with pytest.raises(MethodError, match=rf"test_method_faults.py:{line}\)"):
        run.service.tick()
    run.close()


@pytest.mark.parametrize(
    ("function", "wrong"), [("broadcast", returning(MODEL)), ("everyone", raising), ("broadcast", raising)]
)
def test_other_functions_of_the_server_half_stop_it_as_well(
    function: str, wrong: Any, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(prepared, min_clients=1)
    a = Site("a", answer(run))
    monkeypatch.setattr(Plain, function, wrong)
    with pytest.raises(UnreachableError):
        a.poll()
    with pytest.raises(MethodError, match=f": {function} "):
        run.service.tick()
    run.close()


@pytest.mark.parametrize("wrong", [raising, returning({MODEL: {"w": [0.0]}}), returning(None)])
def test_a_method_that_cannot_start_leaves_no_run(
    wrong: Any, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Plain, "start", wrong)
        with pytest.raises(
            MethodError, match=r"method plain \(tests/server/test_method_faults.py:\d+\): start "
        ):
            start(prepared)
    start(prepared).close()


@pytest.mark.parametrize(("function", "n"), [("flaw", 10), ("upload_layout", 0)])
def test_nothing_that_a_client_sends_stops_the_coordinator(
    function: str, n: int, prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(prepared)
    a, b = (Site(name, answer(run)) for name in "ab")
    a.poll(), b.poll()
    mended = getattr(Plain, function)
    # As a method that divides by n_k, or inverts what was uploaded.
    monkeypatch.setattr(
        Plain, function, lambda self, *given: mended(self, *given) if given[-1] == 10**7 else 1 / 0
    )
    with pytest.raises(InvalidUploadError, match=f"{function} failed with ZeroDivisionError"):
        submit(a, 1, n)
    run.service.tick()
    shown = io.StringIO()
    Console(file=shown, width=400).print(status_view(run.overview.status()))
    assert re.search(r"^a +failed .*ZeroDivisionError: division by zero *$", shown.getvalue(), re.MULTILINE)
    run.close()


def test_keys_that_do_nothing_are_named_at_the_start(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(prepared, residual_every=3).close()
    assert "residual_every" in capsys.readouterr().out + capsys.readouterr().err


def test_the_card_says_what_a_site_sent(prepared: Path) -> None:
    run = start(prepared, min_clients=1, rounds=1)
    a = Site("a", answer(run))
    a.poll()
    submit(a, 1)
    run.finish()
    card = (run.folder.path / "MODEL_CARD.md").read_text()
    assert "| sent by a site | 12 bytes (`w`), every round |" in card
    assert "| options | beta = 0.5 |" in card
    run.close()
