"""What workers do in these tests instead of running a federation: a line in a file, and a made-up record."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from fkd_bench.compare.cell import Cell
from fkd_common.errors import DataError

HERE = __name__
RAN = "ran.txt"


def quick(cell: Cell, workspace: Path) -> dict[str, Any]:
    """Note that it ran, and where; a record that follows from the cell alone."""
    workspace.mkdir(parents=True, exist_ok=True)
    with (workspace / RAN).open("a") as ran:
        ran.write(f"{cell.label} {cell.seed} {os.getpid()}\n")
    score = 0.5 + 0.01 * len(cell.label) + 0.001 * cell.seed
    return {
        **cell.head(),
        "config": cell.config.model_dump(mode="json"),
        "config_hash": cell.config.sha256(),
        "partition_hash": cell.division.id,
        "git": "",
        "model_hash": cell.id[::-1],
        "accuracy": {"global": score, "personal_matched": score + 0.1, "personal_full": float("nan")},
        "rounds": [
            {"round": 1, "accuracy": score - 0.1, "up": 10, "down": 20},
            {"round": 2, "accuracy": score, "accuracies": {"student": score}, "up": 20, "down": 40},
        ],
        "bytes": {"up": 20, "down": 40},
        "seconds": {"wall": 2.0, "cpu": 1.0, "phases": {}},
    }


def one_fails(cell: Cell, workspace: Path) -> dict[str, Any]:
    """FedProx has no data."""
    if cell.method == "fedprox":
        raise DataError("no data at /nowhere: give an existing file")
    return quick(cell, workspace)


def one_has_a_bug(cell: Cell, workspace: Path) -> dict[str, Any]:
    """FedProx divides by zero."""
    print("about to divide")
    return quick(cell, workspace) if cell.method != "fedprox" else {"never": 1 // 0}


def one_dies(cell: Cell, workspace: Path) -> dict[str, Any]:
    """FedProx takes its process with it."""
    if cell.method == "fedprox":
        os.kill(os.getpid(), signal.SIGKILL)
    return quick(cell, workspace)


def disk_is_full(cell: Cell, workspace: Path) -> dict[str, Any]:
    """As when shards are written: what is raised was caused by what the disk said."""
    try:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise DataError("shards could not be written") from error


def slow_after_the_first(cell: Cell, workspace: Path) -> dict[str, Any]:
    """The first cell is quick; every other one takes a minute unless it is let go."""
    first = not (workspace / RAN).exists()
    record = quick(cell, workspace)
    if not first and not (workspace / "go").exists():
        time.sleep(60)
    return record


def tells_its_environment(cell: Cell, workspace: Path) -> dict[str, Any]:
    """Variables that matter, in place of hashes."""
    own = {name: value for name, value in os.environ.items() if name.startswith(("FKD_", "OMP_"))}
    return {**quick(cell, workspace), "environment": own}
