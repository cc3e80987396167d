"""A small experiment on nothing, and cells of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fkd_bench.compare.catalogue import title_of
from fkd_bench.compare.cell import Cell
from fkd_bench.compare.experiment import Experiment
from fkd_bench.compare.method_source import source_sha256
from fkd_bench.compare.span import cells_of

SMALL = """
title: Small
data: {digits: {source: digits, extractor: pretrain, public: 300}}
clients: 3
seeds: [0, 1]
common: {rounds: 2, local_steps: 5}
axes: {partition: ["dirichlet:0.1", iid]}
methods: [fedavg, {method: fedprox, options: {mu: 0.1}}, fkd-rtm]
columns: partition
"""


def small_cells(methods: str = "[fedavg, fedprox, fkd-rtm]", seeds: Sequence[int] = (0,)) -> list[Cell]:
    lines = [line for line in SMALL.splitlines() if not line.startswith(("methods", "axes", "columns"))]
    return cells_of(Experiment.parse("\n".join([*lines, f"methods: {methods}"]), "small", "small"), {}, seeds)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


OWN = """
from fkd_bench.methods.averaging import WeightAveraging

class Mine(WeightAveraging):
    title = "My own"
    source = "nowhere"

    def local_update(self, site, received, round_number):
        raise TypeError(f"no {site.name}")
"""


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a method `mine` that somebody else's package offers, and that cannot be trained."""
    site = tmp_path / "site-packages"
    described = site / "mine-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[fkd.methods]\nmine = my_methods.mine:Mine\n")
    (site / "my_methods").mkdir()
    (site / "my_methods" / "__init__.py").touch()
    (site / "my_methods" / "mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(site))
    source_sha256.cache_clear()
    title_of.cache_clear()
    yield site / "my_methods" / "mine.py"
    source_sha256.cache_clear()
    title_of.cache_clear()
    for name in ("my_methods.mine", "my_methods"):
        sys.modules.pop(name, None)
