"""`fkd-bench run`: the same federation as processes and within one process, and the result it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fkd_bench.cli import main as bench_main

from .conftest import World
from .programs import SMALL, Launcher

pytestmark = pytest.mark.e2e

BOTH_WAYS = {"up", "down"}
ACCURACIES = {
    "student", "anchors", "moments", "published", "personal_full", "personal_matched", "local_only",
}  # fmt: skip


@pytest.mark.slow
def test_processes_and_one_process_compute_the_same_model(
    world: World, launch: Launcher, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run", "--data", "digits", "--limit", "150", "--clients", "2", "--anchors", "20", "--partition", "iid",
        "--extractor", str(world.extractor), "--rounds", "1", "--seed", "3", "--json", *SMALL,
        "--heartbeat-limit-s", "30",
    ]  # fmt: skip
    bench = launch.start("fkd-bench", ["fkd_bench.cli", *arguments, "--out", str(tmp_path / "many")])
    assert bench.end(120) == 0, bench.stderr
    assert "Traceback" not in bench.stderr
    many = json.loads(bench.stdout.splitlines()[-1])
    check_documented_keys(many)

    assert bench_main([*arguments, "--out", str(tmp_path / "one"), "--transport", "inprocess"]) == 0
    one = json.loads(capsys.readouterr().out.splitlines()[-1])
    check_documented_keys(one)

    for same in ("model_hash", "config_hash", "partition_hash", "seed", "accuracy"):
        assert one[same] == many[same]
    # Polls and heartbeats depend on the clock; everything else is the same bytes.
    for phase in ("setup", "student", "residuals", "moments", "votes", "personal"):
        assert one["bytes"]["by_phase"][phase] == many["bytes"]["by_phase"][phase]


def check_documented_keys(result: dict[str, Any]) -> None:
    """What the README promises of the JSON object; details may come on top."""
    assert result.keys() >= {
        "accuracy", "bytes", "seconds", "server", "model_hash", "config_hash", "partition_hash", "seed",
    }  # fmt: skip
    assert result["accuracy"].keys() >= ACCURACIES
    for name in ACCURACIES:
        assert 0 <= result["accuracy"][name] <= 1
    for kind in ("payload", "message"):
        assert result["bytes"][kind].keys() == BOTH_WAYS
    for phase, count in result["bytes"]["by_phase"].items():
        assert count["payload"].keys() == count["message"].keys() == BOTH_WAYS, phase
    assert result["seconds"]["wall"] > 0
    assert result["server"]["peak_rss_mb"] > 0
    assert result["server"]["cpu_s"] > 0
    assert result["seed"] == 3
    for name in ("model_hash", "config_hash", "partition_hash"):
        assert len(result[name]) == 64
