"""The run configuration: ranges, consistency, hash, lists, and which rounds correct or personalise."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from fkd_common.choices import Correction, MomentFeatures, PersonalKind
from fkd_common.config import RunConfig


def config(**keys: Any) -> RunConfig:
    return RunConfig(**keys)


@pytest.mark.parametrize(
    "keys, sentence",
    [
        (
            {"hidden": (8, 4), "dropout": (0.1,)},
            "hidden has 2 layers and dropout 1: give one dropout per layer",
        ),
        ({"hidden": (), "dropout": ()}, "hidden needs at least one width"),
        ({"hidden": (8, 0), "dropout": (0.1, 0.1)}, "hidden needs at least one width, each at least 1"),
        ({"hidden": (8,), "dropout": (1.0,)}, "dropout must lie in [0, 1)"),
        ({"hidden": (8,), "dropout": (-0.1,)}, "dropout must lie in [0, 1)"),
        ({"lambda_grid": ()}, "lambda_grid needs at least one value, each above 0"),
        ({"lambda_grid": (1.0, 0.0)}, "lambda_grid needs at least one value, each above 0"),
        ({"anchor_lambda_grid": (-1.0,)}, "anchor_lambda_grid needs at least one value, each above 0"),
        ({"personal_lambda_grid": ()}, "personal_lambda_grid needs at least one value, each above 0"),
        ({"heartbeat_s": 8.0, "heartbeat_limit_s": 8.0}, "heartbeat_limit_s must exceed heartbeat_s"),
        ({"secure_aggregation": True, "norm_bound": 2.0}, "so norm_bound cannot look at one"),
        ({"secure_aggregation": True, "aggregation": "median"}, "so aggregation cannot look at one"),
        ({"secure_aggregation": True, "max_weight_share": 0.5}, "so max_weight_share cannot look at one"),
        ({"secure_aggregation": True, "fusion": "class_aware"}, "so fusion cannot look at one"),
        ({"secure_aggregation": True, "min_cohort": 1}, "needs min_cohort of at least 2"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as refused:
        config(**keys)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "key, value",
    [
        ("seed", -1),
        ("seed", 2**32),
        ("rounds", 0),
        ("clients_per_round", 0.0),
        ("clients_per_round", 1.1),
        ("min_clients", 0),
        ("quorum", 0.0),
        ("phase_deadline_s", 0.0),
        ("val_fraction", 0.5),
        ("teacher", "forest"),
        ("teacher_epochs", 0),
        ("teacher_leaves", 1),
        ("max_bin", 256),
        ("kd_folds", 1),
        ("batch_size", 1),
        ("temperature", 0.0),
        ("alpha_start", 1.5),
        ("tau_r", -0.1),
        ("secure_threshold", 0.5),
        ("secure_threshold", 1.1),
        ("refine_steps", -1),
        ("refine_steps", 11),
        ("refine_l2", 0.0),
        ("drop_below", 1.1),
        ("eps", 0.1),
        ("finetune_epochs", 6),
        ("norm", "group"),
        ("correction", ("trees",)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        config(**{key: value})
    assert refused.value.errors()[0]["loc"][0] == key


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("key", ["lr", "lambda_res", "phase_deadline_s", "lambda_grid", "blend_gamma_grid"])
def test_no_number_may_be_nan_or_infinite(key: str, number: float) -> None:
    with pytest.raises(ValidationError):
        config(**{key: (1.0, number) if key.endswith("grid") else number})


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="leraning_rate"):
        config(leraning_rate=1.0)


def test_a_configuration_cannot_be_changed_after_it_was_made() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        config().rounds = 3


@pytest.mark.parametrize("given", ["8,4", " 8 , 4 ", "8,4,", [8, 4], ["8,4"], ("8", "4"), (8, 4)])
def test_lists_may_be_written_with_commas(given: Any) -> None:
    assert config(hidden=given, dropout="0.1,0.2").hidden == (8, 4)


def test_an_empty_list_turns_corrections_off() -> None:
    assert config(correction="").correction == ()


def test_equal_configurations_hash_equal_however_they_were_written() -> None:
    a = config(hidden="8,4", dropout="0.1,0.2", lr=1, seed=3)
    b = config(seed=3, lr=1.0, dropout=[0.1, 0.2], hidden=(8, 4))
    assert a.sha256() == b.sha256()


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"rounds": 3}, {"norm": "layer"}, {"drop_below": 0.5}, {"lambda_grid": (1.0,)}]
)
def test_any_difference_changes_the_hash(change: dict[str, Any]) -> None:
    assert config(**change).sha256() != config().sha256()


def test_the_hash_survives_the_wire() -> None:
    sent = config(rounds=7, lambda_grid=(0.1, 1e4), drop_below=0.3)
    assert RunConfig(**json.loads(sent.canonical_json())) == sent
    assert RunConfig(**json.loads(sent.canonical_json())).sha256() == sent.sha256()


def test_the_hash_is_the_same_in_another_process() -> None:
    command = "from fkd_common.config import RunConfig; print(RunConfig().sha256())"
    other = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == RunConfig().sha256()


def test_canonical_json_has_sorted_keys_and_no_spaces() -> None:
    text = config().canonical_json()
    assert ": " not in text
    assert list(json.loads(text)) == sorted(RunConfig.model_fields)


def test_corrections_are_due_every_tenth_round_and_in_the_last() -> None:
    run = config(rounds=25, residual_every=10)
    assert [t for t in range(1, 26) if run.is_correction_round(t)] == [10, 20, 25]


def test_before_the_first_round_moments_are_pooled_unless_it_is_refused() -> None:
    """Of the embedding alone, whatever later rounds pool; there are no residuals before the student has learnt."""
    assert config().is_correction_round(0)
    assert config(correction="moments").is_correction_round(0)
    assert not config(correction="anchors").is_correction_round(0)
    assert not config(correction_at_start=False).is_correction_round(0)
    assert [config().moment_features_in(t) for t in (0, 1)] == [
        MomentFeatures.EMBEDDING,
        MomentFeatures.HIDDEN,
    ]


def test_moments_are_refined_by_ten_steps_where_gradients_may_be_seen() -> None:
    noise = {"noise_multiplier": 1.0, "residual_l2_clip": 1.0, "feature_clip": 1.0, "target_clip": 1.0}
    assert (config().refinements, config(refine_steps=3).refinements) == (10, 3)
    assert config(correction="anchors").refinements == 0
    assert config(secure_aggregation=True).refinements == 0
    assert config(**noise).refinements == 0


def test_without_corrections_no_round_corrects() -> None:
    run = config(rounds=10, correction=(), correction_at_start=True)
    assert not any(run.is_correction_round(t) for t in range(11))


def test_clients_personalise_in_the_last_round_and_every_so_often_on_request() -> None:
    assert [t for t in range(8) if config(rounds=7).is_personal_round(t)] == [7]
    assert [t for t in range(8) if config(rounds=7, personal_every=3).is_personal_round(t)] == [3, 6, 7]
    assert not config(rounds=7, personal=()).is_personal_round(7)


def test_the_default_tries_everything() -> None:
    assert config().correction == (Correction.ANCHORS, Correction.MOMENTS)
    assert config().personal == tuple(PersonalKind)
