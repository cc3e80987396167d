"""The same cells on a Ray cluster of this machine alone."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from fkd_bench.compare.grid import run_grid
from fkd_bench.compare.ray_grid import RayPool
from fkd_bench.compare.result_cache import ResultCache
from fkd_bench.compare.watching import GridWatch
from fkd_common.errors import UnreachableError, UsageError
from tests.tools import absent

from . import stand_in
from .conftest import small_cells


def needs_ray() -> None:
    if find_spec("ray") is None:
        absent("ray is not installed here")


@pytest.mark.e2e
def test_cells_run_on_ray_and_one_that_takes_its_worker_along_stops_no_other(tmp_path: Path) -> None:
    needs_ray()
    cells, cache = small_cells(), ResultCache(tmp_path / "cache")
    pool = RayPool(f"{stand_in.HERE}:one_dies", "local", 1, cache.workspace)
    records = {record["label"]: record for record in run_grid(cells, cache, pool, GridWatch(pool.count))}
    assert records["FedProx"]["error"].startswith("its worker on the Ray cluster ended")
    assert [records[label]["accuracy"]["global"] for label in ("FedAvg", "FKD-RTM")] == [
        pytest.approx(0.56),
        pytest.approx(0.57),
    ]
    assert [cache.finished(cell) is None for cell in cells] == [False, True, False]


def test_an_address_where_nothing_listens_is_one_sentence_at_once(tmp_path: Path) -> None:
    needs_ray()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"no Ray cluster can be used at {address}"):
            RayPool(f"{stand_in.HERE}:quick", address, None, tmp_path)


def test_without_ray_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'fkd\[ray\]'"):
        RayPool(f"{stand_in.HERE}:quick", "local", 1, tmp_path)
