"""What hostile clients of the bench do, by hand, and one small sweep through validation and aggregation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fkd_bench.attacks import Attack, Claim, poisoned_labels, tampered
from fkd_bench.cli import main as bench_main
from fkd_common.config import RunConfig
from fkd_common.pb import types_pb2 as types

STUDENT, RESIDUALS, MOMENTS = types.PHASE_STUDENT, types.PHASE_RESIDUALS, types.PHASE_MOMENTS

RECEIVED = {
    "w": np.array([1.0, 1.0], np.float32),
    "n.running_var": np.array([1.0], np.float32),
    "n.steps": np.array(3),
}
TRAINED = {
    "w": np.array([2.0, 0.0], np.float32),
    "n.running_var": np.array([3.0], np.float32),
    "n.steps": np.array(5),
}


def student_under(attack: Attack) -> Claim:
    return tampered(attack, STUDENT, Claim(TRAINED, 7, 0.5), RECEIVED, RunConfig())


def test_flipped_labels_count_from_the_other_end_and_one_class_is_class_0() -> None:
    labels = np.array([0, 1, 9])
    assert poisoned_labels(Attack.LABEL_FLIP, labels, 10).tolist() == [9, 8, 0]  # type: ignore[union-attr]
    assert poisoned_labels(Attack.ONE_CLASS, labels, 10).tolist() == [0, 0, 0]  # type: ignore[union-attr]
    assert poisoned_labels(Attack.SIGN_FLIP, labels, 10) is None


def test_updates_are_turned_round_or_made_ten_times_as_long() -> None:
    """w moved by (1, -1), the variance by 2, and the counter is left alone; variances keep a tenth of themselves."""
    flipped, scaled = student_under(Attack.SIGN_FLIP), student_under(Attack.SCALED_UPDATE)
    assert flipped.tensors["w"].tolist() == [0.0, 2.0]
    assert (flipped.tensors["n.running_var"].item(), flipped.tensors["n.steps"].item()) == (
        pytest.approx(0.1),
        5,
    )
    assert scaled.tensors["w"].tolist() == [11.0, -9.0]
    assert scaled.tensors["n.running_var"].item() == 21.0
    assert (flipped.num_samples, flipped.reliability) == (7, 0.5)


def test_a_random_update_is_noise_as_long_as_the_honest_one() -> None:
    claim = student_under(Attack.RANDOM_UPDATE)
    assert np.linalg.norm(claim.tensors["w"] - RECEIVED["w"]) == pytest.approx(np.sqrt(2.0), rel=1e-6)
    assert not np.allclose(claim.tensors["w"], TRAINED["w"])
    assert claim.tensors["n.running_var"].item() >= 0.1
    assert claim.tensors["n.steps"].item() == 5
    again = student_under(Attack.RANDOM_UPDATE)
    assert claim.tensors["w"].tobytes() == again.tensors["w"].tobytes()


def test_a_constant_residual_says_class_0_as_loudly_as_clipping_allows() -> None:
    honest = Claim({"residuals": np.zeros((2, 3), np.float32)}, 7, 0.5)
    claim = tampered(Attack.CONSTANT_RESIDUAL, RESIDUALS, honest, {}, RunConfig())
    assert claim.tensors["residuals"].tolist() == [[5, -5, -5], [5, -5, -5]]


def test_a_one_class_liar_claims_ten_times_its_samples_and_sums_to_match() -> None:
    honest = Claim({"A": np.ones(3, np.float32), "B": np.ones((2, 2), np.float32)}, 7, 0.5)
    claim = tampered(Attack.ONE_CLASS, MOMENTS, honest, {}, RunConfig())
    assert (claim.num_samples, claim.reliability, claim.tensors["A"].tolist()) == (70, 1.0, [10, 10, 10])
    honest = Claim({"G": np.ones((1, 2), np.float32)}, 7, 0.5)
    claim = tampered(Attack.ONE_CLASS, types.PHASE_REFINE_3, honest, {}, RunConfig())
    assert (claim.num_samples, claim.tensors["G"].tolist()) == (70, [[10, 10]])


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.scenario(44)
def test_a_sweep_shows_what_hostile_clients_do_under_each_aggregation(
    tmp_path: Path, extractor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scenario 44: real sites on digits, real validation, real aggregation; a random extractor is good enough."""
    arguments = [
        "hostile", "--extractor", str(extractor), "--limit", "200", "--clients", "5", "--partition", "iid",
        "--anchors", "20", "--public", "0", "--rounds", "2", "--residual-every", "2", "--local-steps", "6",
        "--hidden", "24,12", "--dropout", "0,0", "--teacher-trees", "5", "--residual-trees", "3",
        "--trim-fraction", "0.2", "--attacks", "scaled_update,constant_residual",
        "--hostile-shares", "0.2", "--aggregations", "mean,median", "--out", str(tmp_path / "bench"),
    ]  # fmt: skip
    assert bench_main(arguments) == 0
    printed = capsys.readouterr().out
    assert "| 1 x scaled update | student |" in printed
    outcomes = json.loads((tmp_path / "bench" / "hostile.json").read_text())
    assert len(outcomes) == 2 + 2 * 2
    assert all(0 <= score <= 1 for outcome in outcomes for score in outcome["accuracy"].values())
    # Every lie here is one that validation cannot tell from the truth, or the table would show nothing.
    assert all(outcome["refused"] == 0 for outcome in outcomes)
    by_cell = {(o["cell"]["attack"], o["cell"]["aggregation"]): o["accuracy"] for o in outcomes}
    assert by_cell["constant_residual", "mean"]["student"] == by_cell[None, "mean"]["student"]
    assert by_cell["scaled_update", "mean"]["student"] != by_cell[None, "mean"]["student"]
