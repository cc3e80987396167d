"""The documentation's example of a method of one's own runs as it stands, and is as short as it says."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from fkd_common.exchange_method import ExchangeMethod
from fkd_common.method_registry import known_methods
from tests.methods import rehearsal
from tests.methods.rehearsal import Rehearsal

DOCS = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()


def _example() -> str:
    found = re.search(r"```python\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.fixture(scope="module")
def own() -> type[ExchangeMethod]:
    names: dict[str, Any] = {"__name__": "own"}
    exec(compile(_example(), "docs/methods.md", "exec"), names)
    made: type[ExchangeMethod] = names["FedAvgM"]
    return made


def test_it_has_at_most_40_lines() -> None:
    assert len(_example().splitlines()) <= 40


def test_it_learns_and_keeps_its_momentum(own: type[ExchangeMethod]) -> None:
    run = rehearsal.federation(options={"beta": 0.5}, method="fedavgm")
    play = Rehearsal(own(run), rehearsal.sites(run)).run(4)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.6
    assert any((values != 0).any() for values in play.state["speed"].values())


def test_it_is_packed_for_nothing(own: type[ExchangeMethod]) -> None:
    run = rehearsal.federation(
        options={"beta": 0.5}, method="fedavgm", update_codec="int4", model_codec="int8"
    )
    play = Rehearsal(own(run), rehearsal.sites(run)).run(4)
    assert play.global_accuracy(rehearsal.test_set(run)) > 0.6
    fp32 = 4 * sum(values.nbytes for values in play.method.start()["model"].values())
    assert all(sent < 0.75 * fp32 for sent in play.up.values())


def test_without_momentum_it_is_fedavg(own: type[ExchangeMethod]) -> None:
    from fkd_bench.methods.fedavg import FedAvg

    run = rehearsal.federation(options={"beta": 0.0}, method="fedavgm")
    plain = rehearsal.federation()
    mine = Rehearsal(own(run), rehearsal.sites(run)).run(1).state["model"]
    theirs = Rehearsal(FedAvg(plain), rehearsal.sites(plain)).run(1).state["model"]
    assert all(abs(mine[name] - theirs[name]).max() < 1e-5 for name in theirs)


def test_every_method_is_in_the_table_with_its_title_and_mode() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (.*)$", DOCS, re.MULTILINE))
    assert sorted(rows) == sorted(known_methods())
    for entry in entry_points(group="fkd.methods"):
        method, row = entry.load(), rows[entry.name]
        assert row.startswith(f"{method.title} |")
        assert row.rstrip().endswith("| yes |" if method.full_mode else "| no |")
