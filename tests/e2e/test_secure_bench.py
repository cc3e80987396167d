"""Secure aggregation through the real clients and the real coordinator, in one process: the same model comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fkd_bench.cli import main as bench_main

from .conftest import World
from .programs import SMALL

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = [
    "student_keys",
    "student_shares",
    "student_unmask",
    "moments_keys",
    "moments_shares",
    "moments_unmask",
]


def test_secure_aggregation_publishes_what_the_plain_run_publishes(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "run", "--data", "digits", "--limit", "240", "--clients", "3", "--anchors", "20", "--partition", "iid",
        "--extractor", str(world.extractor), "--rounds", "2", "--seed", "3", "--json", *SMALL, "--min-cohort", "2",
        "--heartbeat-limit-s", "30", "--transport", "inprocess", "--out", str(tmp_path),
        "--no-correction-at-start", "--refine-steps", "0", "--update-codec", "fp32", "--statistics-codec", "fp32",
    ]  # fmt: skip
    results: dict[str, dict[str, Any]] = {}
    for name, flags in {"plain": [], "secure": ["--secure-aggregation"]}.items():
        assert bench_main([*arguments, *flags]) == 0
        results[name] = json.loads(capsys.readouterr().out.splitlines()[-1])
    plain, secure = results["plain"], results["secure"]
    # Fixed point and float32 move a weight by a millionth: at most one of the 80-odd test images may tip over.
    for name in ("student", "anchors", "moments", "published", "personal_full"):
        assert secure["accuracy"][name] == pytest.approx(plain["accuracy"][name], abs=0.013), name
    by_phase = secure["bytes"]["by_phase"]
    assert set(STEPS) <= set(by_phase)
    assert not set(STEPS) & set(plain["bytes"]["by_phase"])
    for phase in ("student", "moments"):
        ratio = by_phase[phase]["payload"]["up"] / plain["bytes"]["by_phase"][phase]["payload"]["up"]
        assert 1.9 < ratio < 2.1, phase
