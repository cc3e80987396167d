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
from fkd_common.model_file import ExchangeHeader, ExchangeModel, ModelHeader, ModelParts
from fkd_server.method.federated_method import Json
from fkd_server.model_card import Origin, model_card

TEMPLATE = Path(__file__).parents[2] / "docs" / "model-card-template.md"
MADE = Origin("run-1", 3, "its student's weights")
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
    assert headings(model_card(model, "d" * 64, MADE, {})) == headings(TEMPLATE.read_text())


def test_every_section_that_the_coordinator_cannot_fill_says_who_is_to(model: ModelParts) -> None:
    card = model_card(model, "d" * 64, MADE, {})
    asked = [part.split("\n")[0] for part in card.split("\n## ")[1:] if "*To be completed by " in part]
    assert asked == [
        "Model details", "Intended use", "Factors", "Evaluation data", "Training data", "Ethical considerations",
    ]  # fmt: skip


def test_a_registry_can_read_the_accuracy_of_an_evaluated_model(model: ModelParts) -> None:
    read = metadata(model_card(model, "d" * 64, Origin("run: 1", 3, ""), SCORES))
    assert read["pipeline_tag"] == "image-classification"
    (index,) = read["model-index"]
    assert index["name"] == "run: 1"
    assert index["results"][0]["metrics"] == [{"type": "accuracy", "value": 0.5}]


def test_a_model_that_was_not_evaluated_claims_no_accuracy(model: ModelParts) -> None:
    card = model_card(model, "d" * 64, MADE, {})
    assert "model-index" not in metadata(card)
    assert "Not evaluated." in card


def test_recall_is_told_by_class_where_the_test_set_has_the_class(model: ModelParts) -> None:
    card = model_card(model, "d" * 64, MADE, SCORES)
    assert "| class | recall |\n|---|---|\n| cat | 0.7500 |\n| dog | 0.2500 |\n" in card


def test_a_class_name_cannot_break_a_table(model: ModelParts) -> None:
    assert r"| classes | cat, a\|b, dog |" in model_card(model, "d" * 64, MADE, SCORES)


def test_what_hid_and_blurred_uploads_is_told(model: ModelParts) -> None:
    config = RunConfig(
        secure_aggregation=True, noise_multiplier=1.5, residual_l2_clip=1, feature_clip=1, target_clip=1
    )
    private = replace(model, header=model.header.model_copy(update={"config": config}))
    card = model_card(private, "d" * 64, MADE, {})
    assert "the coordinator saw no single student or moments" in card
    assert "multiplier 1.5 (residual_l2_clip 1, feature_clip 1, target_clip 1)" in card


def test_the_card_of_another_method_speaks_of_that_method_and_of_no_vote(model: ModelParts) -> None:
    config = RunConfig(method="fedprox", options={"mu": 0.5}, rounds=7)
    other = replace(model, header=model.header.model_copy(update={"config": config}))
    card = model_card(other, "d" * 64, Origin("run-1", 7, "8 bytes (`w`), every round"), SCORES)
    for said in (
        "trained by FedProx: the\nmodel after round 7 of 7.",
        "| options | mu = 0.5 |",
        "| sent by a site | 8 bytes (`w`), every round |",
        "| model | accuracy |\n|---|---|\n| published | 0.5000 |\n",
        "the coordinator saw every upload; nothing made of fewer than 2 sites",
    ):
        assert said in card
    for word in ("candidate", "vote", "federated validation", "FKD-RTM", "rule mean", "| student |"):
        assert word not in card


def test_the_card_of_a_whole_network_does_not_call_its_extractor_frozen(model: ModelParts) -> None:
    config = RunConfig(method="fedavg", model="full")
    whole = ExchangeModel(ExchangeHeader(classes=("a",), config=config, extractor_sha256="e" * 64), {})
    card = model_card(whole, "d" * 64, MADE, {})
    assert "| network | a whole ResNet18 |" in card
    assert "frozen" not in card
