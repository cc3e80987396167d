"""What a tree of relays computes is what one coordinator computes of the same sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_common.artifacts import sha256_hex
from fkd_common.choices import Fusion
from fkd_common.model_file import encode_model
from fkd_common.tensors import decode, encode
from fkd_server.run_state import RunState

from ..server.tiny import RESIDUALS, VOTES, TinyRun, filled, inline
from .tree import ANCHORS, DataSite, HandSite, Relay, flat, hub, play, relay

STUDENTS: dict[str, Any] = {"rounds": 1, "correction": (), "personal": ()}
NOISE: dict[str, Any] = {
    "noise_multiplier": 0.5, "residual_l2_clip": 3.0, "feature_clip": 2.0, "target_clip": 4.0,
}  # fmt: skip


def tree(folder: Path, **changes: Any) -> tuple[TinyRun, list[Relay], list[DataSite]]:
    """Two relays, of two and of three sites."""
    above = hub(folder / "hub", **{"min_clients": 2, **changes})
    below = [relay(folder / "r1", above, "r1", 2), relay(folder / "r2", above, "r2", 3)]
    sites = [DataSite(name, below[0]) for name in "ab"] + [DataSite(name, below[1]) for name in "cde"]
    return above, below, sites


def parts(run: TinyRun) -> dict[str, Any]:
    """Every tensor of the global model, by part and name."""
    return {
        f"{part}/{name}": tensor
        for part, artifact in run.method.state.parts().items()
        for name, tensor in decode(run.store.blobs.read(artifact.sha256)).items()
    }


def largest_difference(ours: TinyRun, theirs: TinyRun) -> float:
    a, b = parts(ours), parts(theirs)
    assert a.keys() == b.keys()
    return max(float(np.abs(np.asarray(a[name], np.float64) - b[name]).max()) for name in a)


def votes(run: TinyRun) -> list[Any]:
    """What the rounds' votes and personal models said."""
    return [
        [record["phases"].get(phase, {}).get("validation_accuracy") for phase in ("votes", "personal")]
        for record in run.rounds()
    ]


# -- one equation at a time, by hand --


def two_by_two(folder: Path, **changes: Any) -> tuple[TinyRun, list[Relay], list[HandSite]]:
    """A hub, relay r1 of a and b, relay r2 of c; all at the first task."""
    above = hub(folder / "hub", **{**STUDENTS, "min_clients": 2, **changes})
    below = [relay(folder / "r1", above, "r1", 2), relay(folder / "r2", above, "r2", 1)]
    sites = [
        HandSite(name, node.answer) for name, node in (("a", below[0]), ("b", below[0]), ("c", below[1]))
    ]
    for site in sites:
        site.poll()
    step(below, 6)
    return above, below, sites


def step(relays: list[Relay], times: int = 4) -> None:
    for _ in range(times):
        for each in relays:
            each.step()


def test_students_are_weighted_by_size_and_floored_reliability(tmp_path: Path) -> None:
    """(10·0.5·1 + 30·0.1·2 + 20·0.8·4) / (10·0.5 + 30·0.1 + 20·0.8): b's reliability is below the floor."""
    above, below, sites = two_by_two(tmp_path)
    for site, value, n, r in zip(sites, (1.0, 2.0, 4.0), (10, 30, 20), (0.5, 0.02, 0.8), strict=True):
        site.submit_student(1, filled(above.method, value), n, r)
    step(below)
    np.testing.assert_allclose(above.method.student()["output.bias"], (5 + 6 + 64) / 24, rtol=1e-6)
    (record,) = above.rounds()
    assert record["phases"]["student"]["samples"] == {"r1": 40, "r2": 20}
    assert record["phases"]["student"]["reliability"] == pytest.approx({"r1": 8 / 40, "r2": 0.8})


def test_a_site_below_drop_below_is_in_no_sum(tmp_path: Path) -> None:
    above, below, sites = two_by_two(tmp_path, drop_below=0.3)
    for site, value, r in zip(sites, (1.0, 2.0, 4.0), (0.3, 0.29, 0.3), strict=True):
        site.submit_student(1, filled(above.method, value), 10, r)
    step(below)
    np.testing.assert_allclose(above.method.student()["output.bias"], 2.5, rtol=1e-6)
    assert below[0].named("round_closed")[0]["phases"]["student"]["dropped"] == ["b"]
    assert above.rounds()[0]["phases"]["student"]["dropped"] == []


@pytest.mark.parametrize(
    ("fusion", "expected"),
    [(Fusion.SIZE, [(10 * 1 + 30 * 2 + 20 * 4) / 60] * 3), (Fusion.CLASS_AWARE, [1.0, 2.5, 4.0])],
)
def test_residuals_are_weighted_by_samples_or_by_those_of_the_class(
    tmp_path: Path, fusion: Fusion, expected: list[float]
) -> None:
    """Class-aware: cat is a's alone; of dog b has 30 and c 10; owl is c's alone."""
    above, below, sites = two_by_two(tmp_path, correction=("anchors",), fusion=fusion)
    counts = {"a": (10, 0, 0), "b": (0, 30, 0), "c": (0, 10, 10)}
    for site in sites:
        site.submit_student(1, filled(above.method, 0.5), sum(counts[site.name]))
    step(below, 8)
    for site, value in zip(sites, (1.0, 2.0, 4.0), strict=True):
        R = np.full((len(ANCHORS), 3), value, np.float32)
        told: dict[str, Any] = {}
        if fusion is Fusion.CLASS_AWARE:
            R *= np.array(counts[site.name]) > 0
            told["class_counts"] = counts[site.name]
        upload = inline(encode({"residuals": R}))
        site.call(
            "SubmitResiduals",
            key=site.key(1, RESIDUALS),
            upload=upload,
            num_samples=sum(counts[site.name]),
            **told,
        )
    step(below)
    fused = decode(above.store.blobs.read(above.method.state.parts()["fused_residuals"].sha256))
    np.testing.assert_allclose(fused["fused_residuals"], [expected] * len(ANCHORS), rtol=1e-6)


def test_votes_and_validation_samples_add_up(tmp_path: Path) -> None:
    above, below, sites = two_by_two(tmp_path, correction=("anchors",))
    for site in sites:
        site.submit_student(1, filled(above.method, 0.5), 100)
    step(below, 8)
    R = inline(encode({"residuals": np.ones((len(ANCHORS), 3), np.float32)}))
    for site in sites:
        site.call("SubmitResiduals", key=site.key(1, RESIDUALS), upload=R, num_samples=100)
    step(below, 8)
    for site, student, anchors, total in zip(sites, (1, 2, 3), (4, 0, 3), (5, 2, 4), strict=True):
        cast = [{"candidate": "student", "correct": student}, {"candidate": "anchors", "correct": anchors}]
        site.call("SubmitVotes", key=site.key(1, VOTES), votes=cast, num_validation=total)
    step(below)
    (record,) = above.rounds()
    assert record["phases"]["votes"]["validation_samples"] == 11
    assert record["phases"]["votes"]["validation_accuracy"] == {"student": 6 / 11, "anchors": 7 / 11}
    assert record["phases"]["votes"]["published"] == "anchors"


# -- whole runs --


@pytest.mark.parametrize(
    ("changes", "at_most"),
    [
        ({}, 5e-5),
        ({"norm": "batch", "fusion": "class_aware", "report_personal": True}, 5e-5),
        ({"moment_features": "last", "drop_below": 0.2, "lambda_grid": (10.0,)}, 2e-6),
        ({"correction_at_start": False, "personal_every": 1, "refine_steps": 0}, 5e-5),
        (NOISE, 5e-5),
    ],
    ids=("default", "class_aware", "last", "ridge", "noise"),
)
def test_two_relays_make_the_model_of_five_sites(
    tmp_path: Path, changes: dict[str, Any], at_most: float
) -> None:
    """Two rounds, each of which starts from what the one before made of float32 sums."""
    above, below, sites = tree(tmp_path, **changes)
    play([above], below, sites)
    one = flat(tmp_path / "flat", "abcde", **changes)
    assert above.coordinator.state is RunState.COMPLETED
    assert all(each.coordinator.state is RunState.COMPLETED for each in below)
    difference = largest_difference(above, one)
    print(f"largest difference {difference:.1e}")
    assert 0 < difference < at_most
    assert votes(above) == votes(one)
    assert above.method.state.published == one.method.state.published


def test_a_relay_publishes_the_upstream_runs_model(tmp_path: Path) -> None:
    above, below, sites = tree(tmp_path)
    play([above], below, sites)
    models = [node.method.model() for node in (above, *below)]
    assert all(model is not None for model in models)
    assert len({sha256_hex(encode_model(model)) for model in models if model is not None}) == 1


def test_a_relay_that_is_not_told_what_is_published_publishes_nothing(tmp_path: Path) -> None:
    above, below, sites = tree(tmp_path, personal=())
    play([above], below, sites)
    assert above.method.model() is not None
    assert [each.method.model() for each in below] == [None, None]


def test_three_levels(tmp_path: Path) -> None:
    """hub ← (r1 ← (r3 ← a, b), c), d, e."""
    above = hub(tmp_path / "hub", min_clients=3)
    middle = relay(tmp_path / "r1", above, "r1", 2)
    below = relay(tmp_path / "r3", middle, "r3", 2)
    at = {"a": below, "b": below, "c": middle, "d": above, "e": above}
    play([above], [middle, below], [DataSite(name, node) for name, node in at.items()])
    difference = largest_difference(above, flat(tmp_path / "flat", "abcde"))
    print(f"largest difference {difference:.1e}")
    assert difference < 5e-5
    assert below.method.model() is not None


def test_with_lossy_codecs_a_tree_rounds_once_more_and_not_to_one_side(tmp_path: Path) -> None:
    """The students' mean over many seeds of what relays round is the mean of what they do not."""
    codecs = {**STUDENTS, "update_codec": "int8", "hidden": (4,), "dropout": (0.0,)}
    errors = []
    for seed in range(12):
        above, below, sites = tree(tmp_path / f"{seed}", seed=seed, **codecs)
        play([above], below, sites)
        one = flat(tmp_path / f"flat-{seed}", "abcde", seed=seed, **codecs)
        ours, theirs = above.method.student(), one.method.student()
        scale = np.abs(theirs["output.weight"]).max() / 127
        errors.append((ours["output.weight"] - theirs["output.weight"]) / scale)
    assert 0.01 < np.abs(errors).max() < 1.0
    assert abs(np.mean(errors)) < 4 * np.std(errors) / np.sqrt(np.size(errors))


def test_with_all_codecs_in_force_nothing_honest_is_refused(tmp_path: Path) -> None:
    coded = {"update_codec": "int4", "model_codec": "int8", "statistics_codec": "int16", "norm": "batch"}
    above, below, sites = tree(tmp_path, **coded)
    play([above], below, sites)
    assert above.coordinator.state is RunState.COMPLETED
    assert not any(each.named("upstream_not_answered") for each in below)
    assert [record["phases"]["moments"]["pooled_samples"] for record in above.rounds()[::2]] == [215, 215]
