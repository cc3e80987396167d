"""Workers as actors of a Ray cluster: the same cells, on as many machines; finished cells are kept by who asked.

Every node needs this package, and the data at the same path, as in a folder that all of them mount. What cells share
is made once on every node.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fkd_bench.compare.cell import Cell, Record
from fkd_bench.compare.pool import forget_settings
from fkd_bench.compare.schedule import Schedule
from fkd_bench.compare.shared_folder import sweep
from fkd_bench.compare.worker import Watch, record_of
from fkd_common.errors import UnreachableError, UsageError
from fkd_common.places import cache_folder

LOCAL = "local"
"""Address that stands for a cluster of this machine alone, which ends with the comparison."""

_TICK_S = 1.0
_KNOCK_S = 5.0


class RayPool:
    """One actor per worker, one core each."""

    def __init__(self, run_cell: str, address: str, workers: int | None, workspace: Path) -> None:
        """Connect to a cluster, or start one.

        Args:
            run_cell: What workers do, as ``module:function``.
            address: Of the cluster's head, or `local`.
            workers: How many (default: one per core of the cluster).
            workspace: What cells share on this machine; other nodes have a folder of their own.

        Raises:
            UsageError: Ray is not installed here.
            UnreachableError: There is no cluster at this address.
        """
        try:
            import ray
        except ImportError as error:
            raise UsageError("--ray needs Ray: pip install 'fkd[ray]'") from error
        self._ray: Any = ray
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        quiet: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "configure_logging": True}
        try:
            if address == LOCAL:
                ray.init(
                    address=LOCAL,
                    num_cpus=workers,
                    include_dashboard=False,
                    _node_ip_address="127.0.0.1",
                    **quiet,
                )
            else:
                _knock(address)
                ray.init(address=address, **quiet)
        except (OSError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise UnreachableError(f"no Ray cluster can be used at {address}: {reason}") from error
        self.count = workers or max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._given = (run_cell, str(workspace) if address == LOCAL else None)

    def run(self, schedule: Schedule[int], watch: Watch) -> Iterator[tuple[Cell, Record]]:
        """See :class:`fkd_bench.compare.worker.Workers`."""
        ray = self._ray
        actor = ray.remote(num_cpus=1)(_Actor)
        actors = {number: actor.remote(*self._given) for number in range(self.count)}
        running: dict[Any, tuple[int, Cell]] = {}
        try:
            while True:
                for number in set(actors) - {number for number, _ in running.values()}:
                    if (cell := schedule.take(number)) is not None:
                        running[actors[number].run.remote(cell)] = (number, cell)
                        watch.started(cell)
                if not running:
                    return
                ended, _ = ray.wait(list(running), timeout=_TICK_S)
                watch.tick()
                for future in ended:
                    number, cell = running.pop(future)
                    try:
                        record = ray.get(future)
                    except ray.exceptions.RayError as error:
                        record = cell.failed(f"its worker on the Ray cluster ended: {type(error).__name__}")
                        actors[number] = actor.remote(*self._given)
                    schedule.done(cell)
                    yield cell, record
        finally:
            ray.shutdown()


def _knock(address: str) -> None:
    """See that something listens at HOST:PORT, for which Ray itself would wait many minutes.

    Raises:
        OSError: Nothing does.
    """
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), _KNOCK_S).close()


class _Actor:
    """A worker on some node."""

    def __init__(self, run_cell: str, workspace: str | None) -> None:
        forget_settings()
        self._run_cell = run_cell
        self._workspace = Path(workspace) if workspace is not None else cache_folder() / "compare"
        sweep(self._workspace)

    def run(self, cell: Cell) -> Record:
        """See :func:`fkd_bench.compare.worker.record_of`."""
        for path in cell.division.paths:
            if not path.exists():
                return cell.failed(
                    f"node {socket.gethostname()} has no {path}: data must lie at the same path on every node, "
                    f"as in a shared folder"
                )
        return record_of(self._run_cell, cell, self._workspace)
