"""`fkd-bench load` against a real coordinator, and what it says without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_bench.cli import main
from fkd_bench.load.figures import Mark, Measured, describe, ratios
from fkd_bench.load.limits import limits
from fkd_bench.load.method import moved
from fkd_bench.load.model import exchanged_tensors
from fkd_bench.load.settings import LoadSettings
from fkd_common.method_registry import known_methods
from fkd_common.tensors import encode

FIELDS = {
    "wall_s_per_round", "server_cpu_s_per_round", "client_cpu_s_per_round", "server_peak_rss_mb", "payload_bytes",
    "message_bytes", "wire_bytes", "start_to_first_round_s", "rpc", "clients", "rounds", "model", "parameters",
    "limits", "method", "processes", "tls", "versions",
}  # fmt: skip


def _refused(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """The one sentence that refuses a call which is a mistake."""
    assert main(["load", *flags]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    return printed.err


@pytest.mark.e2e
def test_a_load_of_two_clients_says_what_two_rounds_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = {
        "w": np.ones((300, 1000), np.float32),
        "scale": np.float32(2).reshape(()),
        "steps": np.array(3),
    }
    (tmp_path / "model.safetensors").write_bytes(encode(tensors))
    flags = ["--clients", "2", "--rounds", "2", "--model", str(tmp_path / "model.safetensors")]
    assert main(["load", *flags]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(found) == FIELDS
    assert (found["clients"], found["rounds"], found["parameters"]) == (2, 2, 300_002)

    payload = 2 * sum(array.nbytes for array in tensors.values())
    assert found["payload_bytes"] == payload
    assert payload < found["message_bytes"] <= payload * 1.01 + 4096
    assert found["message_bytes"] < found["wire_bytes"] <= found["message_bytes"] * 1.01 + 4096

    assert 0 < found["wall_s_per_round"] < 30
    assert found["server_peak_rss_mb"] > 20
    assert found["start_to_first_round_s"] > 0
    chunks = 2 * 2 * 2  # clients, rounds, chunks of a megabyte
    counts = {name: calls["count"] for name, calls in found["rpc"].items()}
    assert (counts["GetChunk"], counts["PutChunk"], counts["SubmitExchange"]) == (chunks, chunks, 4)
    assert all(0 < calls["p50_ms"] <= calls["p99_ms"] for calls in found["rpc"].values())


def test_the_machines_limits_are_those_of_all_bytes_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fkd_bench.load.limits._MOST_BYTES", 8 << 20)
    parts = ("loopback_s", "protobuf_s", "sha256_s", "disk_s", "average_s")
    tensors = {"w": np.ones(100_000, np.float32)}
    few, many = limits(tensors, 2, wall_s_per_round=4.0), limits(tensors, 200, wall_s_per_round=4.0)
    assert set(few) == {*parts, "all_s", "share_of_wall"}
    for found in (few, many):
        assert all(found[part] > 0 for part in parts)
        assert found["all_s"] == pytest.approx(sum(found[part] for part in parts), abs=5e-4)
        assert found["share_of_wall"] == pytest.approx(found["all_s"] / 4.0, abs=1e-3)
    assert 20 < many["all_s"] / few["all_s"] < 500, "what is too much to do is carried on in proportion"


@pytest.mark.e2e
def test_clients_that_wait_in_polls_cost_little(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--clients", "20", "--idle-s", "3"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["clients"] == 20
    assert 3.0 <= found["idle_s"] < 10.0
    assert found["server_cpu_share"] < 0.5
    assert found["server_peak_rss_mb"] > 20


@pytest.mark.e2e
def test_a_run_goes_on_without_a_client_that_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--clients", "2", "--kill", "client"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["killed"], found["clients"]) == ("client", 2)
    assert (
        found["heartbeat_limit_s"] - found["heartbeat_s"] < found["noticed_s"] <= found["round_over_s"] < 60
    )


@pytest.mark.e2e
def test_a_coordinator_that_is_killed_goes_on_with_its_round(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "--clients", "2", "--kill", "coordinator"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["killed"], found["clients"]) == ("coordinator", 2)
    assert 0 < found["serving_s"] < found["round_over_s"] < 60


def test_figures_are_of_one_round_and_bytes_of_one_client() -> None:
    settings = LoadSettings(clients=4, rounds=10, wire_rounds=2)
    tensors = {"w": np.zeros(25, np.float32)}
    timed = Measured(100.0, Mark(101.5, 1.0, 2.0, 0), Mark(121.5, 4.0, 7.0, 0), 50_000_000)
    wired = Measured(0.0, Mark(0.0, 0.0, 0.0, 1000), Mark(9.0, 9.0, 9.0, 2760), 1)
    found = describe(settings, tensors, timed, wired)
    assert found["wall_s_per_round"] == 2.0
    assert found["server_cpu_s_per_round"] == 0.3
    assert found["client_cpu_s_per_round"] == 0.5
    assert found["server_peak_rss_mb"] == 50.0
    assert found["payload_bytes"] == 200
    assert found["wire_bytes"] == 220
    assert found["start_to_first_round_s"] == 1.5
    assert ratios(found, {**found, "wall_s_per_round": 5.0, "wire_bytes": None})["wall_s_per_round"] == 2.5
    assert "wire_bytes" not in ratios(found, {**found, "wire_bytes": None})


def test_without_flower_it_says_how_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "benchmarks/flower/install" in _refused(capsys, "--against", "flower")
    nothing = str(tmp_path / "python")
    told = _refused(capsys, "--against", "flower", "--flower-python", nothing)
    assert nothing in told
    assert "benchmarks/flower/install" in told


def test_idle_clients_are_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert "leave out --against" in _refused(capsys, "--idle-s", "5", "--against", "flower")
    assert "leave out --against" in _refused(capsys, "--kill", "client", "--against", "flower")
    for unused in ("--processes", "--wire-rounds"):
        assert f"leave out {unused}" in _refused(capsys, "--kill", "client", unused, "1")
    assert "leave out --rounds and --wire-rounds" in _refused(
        capsys, "--idle-s", "5", "--rounds", "3", "--wire-rounds", "1"
    )
    assert "leave out one of them" in _refused(capsys, "--kill", "client", "--idle-s", "5")
    assert "--clients 2 or more" in _refused(capsys, "--kill", "client", "--clients", "1")


def test_a_model_that_is_none_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert "a safetensors file" in _refused(capsys, "--model", "nothing-here")
    assert "student" in _refused(capsys, "--method", "fkd-rtm", "--model", "resnet18")


def test_a_model_that_is_not_finite_is_refused_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(encode({"w": np.array([1.0, np.nan], np.float32)}))
    assert main(["load", "--model", str(file)]) == 3
    assert "NaN or infinity in tensor 'w'" in capsys.readouterr().err


def test_the_ready_models_are_the_usual_ones() -> None:
    def weights(model: str) -> int:
        return sum(
            array.size
            for name, array in exchanged_tensors(model).items()
            if "norm" not in name and not name.rpartition(".")[2].startswith("running")
        )

    assert weights("student") == 428_170
    assert weights("resnet18") == 11_181_642  # ResNet18 with ten classes


def test_no_two_clients_send_the_same_tensors() -> None:
    tensors = exchanged_tensors("student")
    sent = {encode(moved(tensors, client)) for client in range(5)}
    assert len(sent) == 5
    assert all(len(blob) == len(encode(tensors)) for blob in sent)


def test_the_method_without_learning_is_none_to_compare_with() -> None:
    assert "load" not in known_methods()
