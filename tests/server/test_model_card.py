"""What the card of a model promises its reader."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from fkd_common.config import RunConfig
from fkd_common.method.residuals import Standardiser
from fkd_common.model_file import ModelHeader, ModelParts
from fkd_server.method.federated_method import Json
from fkd_server.model_card import model_card

TEMPLATE = Path(__file__).parents[2] / "docs" / "model-card-template.md"
SCORES: dict[str, Json] = {"student": 0.25, "published": 0.5, "recall": [0.75, None, 0.25]}


@pytest.fixture
def model() -> ModelParts:
    header = ModelHeader(
        classes=("cat", "a|b", "dog"),
        published="student",
        config=RunConfig(),
        moment_lambda=0.0,
        anchor_lambda=0.0,
        anchor_loo_r2=0.0,
        extractor_sha256="e" * 64,
    )
    standardiser = Standardiser(np.zeros(2, np.float32), np.ones(2, np.float32))
    return ModelParts(header, {}, standardiser, None, None)


def headings(text: str) -> list[str]:
    return re.findall(r"^## (.+)$", text, re.MULTILINE)


def metadata(card: str) -> dict[str, Json]:
    block = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    assert block is not None
    return dict(yaml.safe_load(block[1]))


def test_the_card_has_the_sections_of_the_template_in_its_order(model: ModelParts) -> None:
    assert headings(model_card(model, "d" * 64, "run-1", {}, 3)) == headings(TEMPLATE.read_text())


def test_every_section_that_the_coordinator_cannot_fill_says_who_is_to(model: ModelParts) -> None:
    card = model_card(model, "d" * 64, "run-1", {}, 3)
    asked = [part.split("\n")[0] for part in card.split("\n## ")[1:] if "*To be completed by " in part]
    assert asked == [
        "Model details", "Intended use", "Factors", "Evaluation data", "Training data", "Ethical considerations",
    ]  # fmt: skip


def test_a_registry_can_read_the_accuracy_of_an_evaluated_model(model: ModelParts) -> None:
    read = metadata(model_card(model, "d" * 64, "run: 1", SCORES, 3))
    assert read["pipeline_tag"] == "image-classification"
    (index,) = read["model-index"]
    assert index["name"] == "run: 1"
    assert index["results"][0]["metrics"] == [{"type": "accuracy", "value": 0.5}]


def test_a_model_that_was_not_evaluated_claims_no_accuracy(model: ModelParts) -> None:
    card = model_card(model, "d" * 64, "run-1", {}, 3)
    assert "model-index" not in metadata(card)
    assert "Not evaluated." in card


def test_recall_is_told_by_class_where_the_test_set_has_the_class(model: ModelParts) -> None:
    card = model_card(model, "d" * 64, "run-1", SCORES, 3)
    assert "| class | recall |\n|---|---|\n| cat | 0.7500 |\n| dog | 0.2500 |\n" in card


def test_a_class_name_cannot_break_a_table(model: ModelParts) -> None:
    assert r"| classes | cat, a\|b, dog |" in model_card(model, "d" * 64, "run-1", SCORES, 3)


def test_what_hid_and_blurred_uploads_is_told(model: ModelParts) -> None:
    config = RunConfig(
        secure_aggregation=True, noise_multiplier=1.5, residual_l2_clip=1, feature_clip=1, target_clip=1
    )
    private = replace(model, header=model.header.model_copy(update={"config": config}))
    card = model_card(private, "d" * 64, "run-1", {}, 3)
    assert "the coordinator saw no single student or moments" in card
    assert "multiplier 1.5 (residual_l2_clip 1, feature_clip 1, target_clip 1)" in card
