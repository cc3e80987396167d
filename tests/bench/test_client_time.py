"""What a client takes is told by part, for this release and beside another checkout's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fkd_bench.cli import main as bench_main

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_client_is_timed_by_part_beside_another_checkouts(
    tmp_path: Path, extractor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        "client-time", "--against", str(CHECKOUT), "--repeats", "1", "--again", "0", "--limit", "150",
        "--anchors", "20", "--extractor", str(extractor), "--hidden", "24,12", "--dropout", "0,0", "--rounds", "1",
        "--local-steps", "3", "--teacher-trees", "5", "--residual-trees", "3", "--finetune-epochs", "1",
        "--refine-steps", "1", "--out", str(tmp_path), "--json",
    ]  # fmt: skip
    assert bench_main(arguments) == 0
    found = json.loads(capsys.readouterr().out)  # nothing else is on standard output
    (images,) = tmp_path.rglob("shard0/images.npy")
    assert sum(found["samples"].values()) == len(np.load(images))
    for name in ("now", "before"):
        first = found[name]["first"]
        assert {"embed", "teacher", "student", "residual", "personal", "process"} <= first.keys()
        assert sum(value for part, value in first.items() if part != "process") == pytest.approx(
            first["process"], abs=0.01
        )
    assert found["ratio"]["first"]["process"] == pytest.approx(
        found["now"]["first"]["process"] / found["before"]["first"]["process"], abs=0.01
    )
    assert found["embedding"]["forward"] > 0


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_main(["client-time", "--against", str(tmp_path), "--out", str(tmp_path)]) != 0
    assert "is no checkout of this repository" in capsys.readouterr().err
