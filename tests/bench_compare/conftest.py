"""A small experiment on nothing, and cells of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from fkd_bench.compare.cell import Cell
from fkd_bench.compare.experiment import Experiment
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
