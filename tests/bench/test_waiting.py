"""A run within one process says what it waits for, as a coordinator's log does."""

from __future__ import annotations

from pathlib import Path

import pytest

from fkd_bench import simulation
from fkd_bench.cli import main as bench_main


@pytest.mark.e2e
def test_a_run_in_one_process_that_has_been_silent_says_what_it_waits_for(
    tmp_path: Path, extractor: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "SAY_WAITING_S", 0.05)
    arguments = [
        "run", "--method", "fedavg", "--rounds", "1", "--data", "digits", "--limit", "100", "--clients", "2",
        "--anchors", "20", "--partition", "iid", "--extractor", str(extractor), "--hidden", "24,12",
        "--dropout", "0,0", "--local-steps", "3", "--finetune-epochs", "1", "--transport", "inprocess",
        "--heartbeat-limit-s", "30", "--out", str(tmp_path),
    ]  # fmt: skip
    assert bench_main(arguments) == 0
    assert "waiting: 0 of 2 clients ready" in capsys.readouterr().err
