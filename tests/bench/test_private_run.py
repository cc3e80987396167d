"""A whole run with noise, and what it says it cost; the figures beforehand are the figures afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fkd_bench.cli import main as bench_main


@pytest.mark.e2e
@pytest.mark.slow
def test_a_run_with_noise_ends_with_the_epsilon_that_was_announced(
    tmp_path: Path, extractor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = ["--noise-multiplier", "4", "--rounds", "2", "--residual-every", "1"]
    assert bench_main(["privacy", *noise, "--json"]) == 0
    announced = json.loads(capsys.readouterr().out)
    arguments = [
        "run", *noise, "--residual-l2-clip", "5", "--feature-clip", "5", "--target-clip", "8",
        "--data", "digits", "--limit", "150", "--clients", "2", "--anchors", "20", "--partition", "iid",
        "--extractor", str(extractor), "--hidden", "24,12", "--dropout", "0,0", "--local-steps", "3",
        "--teacher-trees", "5", "--residual-trees", "3", "--personal", "closed_form", "--transport", "inprocess",
        "--heartbeat-limit-s", "30", "--out", str(tmp_path), "--json",
    ]  # fmt: skip
    assert bench_main(arguments) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 <= result["accuracy"]["moments"] <= 1
    reports = [json.loads(path.read_text()) for path in tmp_path.rglob("report.json")]
    assert len(reports) == 2
    for report in reports:
        sentence = report["privacy"].pop("sentence")
        assert report["privacy"] == announced
        assert "students, votes, n_k and r_k carry no noise" in sentence


@pytest.mark.parametrize(
    "flags, message",
    [
        ([], "--noise-multiplier is required"),
        (["--noise-multiplier", "0"], "input should be greater than 0"),
        (["--noise-multiplier", "1", "--correction", "votes"], "input should be 'anchors' or 'moments'"),
    ],
)
def test_what_epsilon_cannot_be_computed_for_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench_main(["privacy", *flags]) != 0
    assert message in capsys.readouterr().err
