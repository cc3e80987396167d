"""`fkd-bench codecs`: every codec is measured, and what is measured is what theory says."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fkd_bench.cli import main
from fkd_common.choices import ModelCodec, StatisticsCodec, UpdateCodec


@pytest.fixture
def found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    file = tmp_path / "model.safetensors"
    rng = np.random.default_rng(0)
    save_file({"w": rng.standard_normal((64, 4096), np.float32), "b": np.zeros(64, np.float32)}, file)
    assert main(["codecs", "--model", str(file), "--times", "1"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_every_codec_of_every_key_is_measured(found: dict[str, Any]) -> None:
    for key, codecs in (
        ("update_codec", UpdateCodec),
        ("model_codec", ModelCodec),
        ("statistics_codec", StatisticsCodec),
    ):
        assert list(found[key]) == [codec.value for codec in codecs]
        assert all(cost["pack_s"] >= 0 and cost["unpack_s"] >= 0 for cost in found[key].values())


def test_errors_and_sizes_are_those_of_the_codecs(found: dict[str, Any]) -> None:
    updates = found["update_codec"]
    assert updates["fp32"]["relative_error"] == 0
    # One bit per value without bias: sqrt(pi/2 - 1) (Vargaftik et al., DRIVE, NeurIPS 2021, Theorem 3).
    assert updates["int1"]["relative_error"] == pytest.approx(math.sqrt(math.pi / 2 - 1), rel=0.02)
    errors = [updates[name]["relative_error"] for name in ("fp32", "fp16", "int8", "int4", "int1")]
    sizes = [updates[name]["bytes"] for name in ("fp32", "fp16", "int8", "int4", "int1")]
    assert errors == sorted(errors)
    assert sizes == sorted(sizes, reverse=True)
    assert updates["int1"]["bytes"] == pytest.approx(64 * 4096 / 8, rel=0.1)


def test_what_cannot_be_measured_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codecs", "--model", "nothing.safetensors"]) == 2
    assert "expected student, resnet18 or a safetensors file" in capsys.readouterr().err
    assert main(["codecs", "--times", "0"]) == 2
    assert "a number from 1 to 1000 expected" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array(1.0, np.float32), "a float32 matrix"),
        (np.ones(5, np.float32), "a float32 matrix"),
        (np.ones((4, 4), np.float16), "a float32 matrix"),
        (np.zeros((4, 0), np.float32), "a float32 matrix"),
        (np.zeros((4, 4), np.float32), "a float32 matrix"),
        (np.full((4, 4), 3e38, np.float32), "a step of 0.01"),
        (np.full((4, 4), np.nan, np.float32), "NaN or infinity in tensor 'w'"),
    ],
)
def test_a_model_that_no_codec_packs_is_refused(
    array: np.ndarray[Any, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": array}, file)
    assert main(["codecs", "--model", str(file), "--times", "1"]) == 3
    assert expected in capsys.readouterr().err


def test_a_model_of_matrices_alone_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"w": np.ones((4, 4), np.float32), "empty": np.zeros((4, 0), np.float32)}, file)
    assert main(["codecs", "--model", str(file), "--times", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["model_codec"]["fp16"]["relative_error"] == 0
