"""What a reader should know of a published model, as Markdown; nothing is measured here.

The sections are those of Mitchell et al., "Model Cards for Model Reporting" (FAT* 2019), in the order of
``docs/model-card-template.md``; the block at the top is what model registries such as the Hugging Face Hub read.
What the coordinator cannot know says who is to complete it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import yaml

from fkd_common.choices import ModelMode
from fkd_common.config import FKD_RTM, RunConfig
from fkd_common.method_registry import described, exchange_method
from fkd_common.model_file import ModelParts, PublishedModel
from fkd_server.method.federated_method import Json

_CHOSEN = """ The candidate was chosen without it, by federated validation on
the sites' held-out samples."""
_FROZEN = "The extractor is frozen: classes that it does not tell apart, the model does not. "


@dataclass(frozen=True)
class Origin:
    """Where a model comes from."""

    run_id: str
    round: int
    """After which it was made."""
    sent: str
    """What left a site for it, in Markdown."""
    stopped: str = ""
    """Why the run ended before its last round; empty if it did not."""


def model_card(model: PublishedModel, digest: str, made: Origin, accuracy: Mapping[str, Json]) -> str:
    """The card of a run's published model.

    Args:
        model: The model.
        digest: Its file's SHA-256.
        made: Where it comes from.
        accuracy: By candidate, in 0...1, and "recall" by class; empty if it was not evaluated.
    """
    header, config = model.header, model.header.config
    title, source = described(config)
    scores = {name: value for name, value in accuracy.items() if isinstance(value, float)}
    if config.method != FKD_RTM:  # has no candidates: its student is what is published
        scores = {name: value for name, value in scores.items() if name == "published"}
    ending = f" The run ended early: {made.stopped}." if made.stopped else ""
    return f"""---
{_metadata(made.run_id, config.method, scores)}---

# Model card

## Model details

Global image classifier of run `{made.run_id}`, trained by {title}: the
model after round {made.round} of {config.rounds}.{ending}

| | |
|---|---|
| file | `model.safetensors`, sha256 `{digest}` |
| classes | {_cell(", ".join(header.classes))} |
{_choices(model)}
| network | {_network(model)} |
| extractor | sha256 `{header.extractor_sha256}` ({_extractor(config)}) |
| configuration | sha256 `{config.sha256()}`, in `config.yaml` |
| method | {source} |
| sent by a site | {made.sent} |

*To be completed by who publishes the model: who developed it, whom to ask, its licence.*

## Intended use

Classifies images like those of the participating sites into the classes above. It has not been assessed for any use
on people.

*To be completed by who publishes the model: intended uses and users, and uses that are out of scope.*

## Factors

Results can differ by class, by site and by device; what the coordinator can tell apart is the class, below.

*To be completed by the sites: groups, instruments and conditions that their images cover, and that they lack.*

## Metrics

Accuracy: the share of images whose most probable class is right, all classes alike; recall: the same within a class.

## Evaluation data

The coordinator's test set; its images are no site's.{_CHOSEN if config.method == FKD_RTM else ""}

*To be completed by who runs the coordinator: where the test set comes from.*

## Training data

Images that did not leave their sites. Who took part in which round, with how many samples, is in `rounds.jsonl`.

*To be completed by the sites: how their images were collected and labelled, and under which consent.*

## Quantitative analyses

{_table("candidate" if config.method == FKD_RTM else "model", scores) if scores else "Not evaluated."}
{_recall(header.classes, accuracy.get("recall"))}
## Ethical considerations

| | |
|---|---|
| aggregation | {_aggregation(config)} |
| noise | {_noise(config)} |

What a trained model and its uploads can reveal of the images is in the project's `docs/privacy.md`.

*To be completed by the sites: risks to the people the images come from, and who has assessed them.*

## Caveats and recommendations

{_FROZEN if config.model is ModelMode.HEAD else ""}Accuracy on other populations,
devices or sites is unknown until measured there; a site's personal model is scored at that site only.
"""


def _metadata(run_id: str, method: str, scores: Mapping[str, float]) -> str:
    """The YAML block that model registries read."""
    metadata: dict[str, Json] = {
        "library_name": "fkd",
        "pipeline_tag": "image-classification",
        "tags": ["federated-learning", *(["knowledge-distillation"] if method == FKD_RTM else []), method],
    }
    if "published" in scores:
        result: dict[str, Json] = {
            "task": {"type": "image-classification"},
            "dataset": {"type": "private", "name": "the coordinator's test set"},
            "metrics": [{"type": "accuracy", "value": round(scores["published"], 4)}],
        }
        metadata["model-index"] = [{"name": run_id, "results": [result]}]
    return yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)


def _choices(model: PublishedModel) -> str:
    """What was chosen: by FKD-RTM's vote, or beforehand by whoever ran another method."""
    config = model.header.config
    if config.method == FKD_RTM:
        return f"| published candidate | {model.header.published} |"
    options = exchange_method(config).Options(**config.options).model_dump(mode="json")
    given = ", ".join(f"{name} = {value}" for name, value in options.items())
    return f"| options | {_cell(given) if given else 'none'} |"


def _extractor(config: RunConfig) -> str:
    return "not contained here" if config.model is ModelMode.HEAD else "which the network began as"


def _network(model: PublishedModel) -> str:
    """What the model is made of."""
    config = model.header.config
    if isinstance(model, ModelParts):
        return f"student with hidden layers {config.hidden}, {config.norm} normalisation"
    return (
        "a whole ResNet18"
        if config.model is ModelMode.FULL
        else f"tensors of {config.method} on the embedding"
    )


def _table(first: str, values: Mapping[str, float], second: str = "accuracy") -> str:
    rows = "\n".join(f"| {_cell(name)} | {value:.4f} |" for name, value in values.items())
    return f"| {first} | {second} |\n|---|---|\n{rows}"


def _cell(text: str) -> str:
    """Text that does not end its cell of a table."""
    return text.replace("|", r"\|")


def _recall(classes: tuple[str, ...], recall: Json) -> str:
    """Recall of the published model by class, as far as the test set has the class."""
    if not isinstance(recall, (list, tuple)):
        return ""
    known = {
        name: float(value)
        for name, value in zip(classes, recall, strict=False)
        if isinstance(value, int | float)
    }
    return f"\nRecall of the published model:\n\n{_table('class', known, 'recall')}\n" if known else ""


def _aggregation(config: RunConfig) -> str:
    """Who saw single uploads, and what limited them."""
    few = f"nothing made of fewer than {config.min_cohort} sites"
    if config.method != FKD_RTM:
        return f"the coordinator saw every upload; {few}"
    seen = (
        "sums under masks: the coordinator saw no single student or moments"
        if config.secure_aggregation
        else ("the coordinator saw every upload")
    )
    limits = [f"rule {config.aggregation.value}"]
    if config.norm_bound is not None:
        limits.append(f"norm bound {config.norm_bound:g} x median ({config.norm_action.value})")
    if config.max_weight_share < 1:
        limits.append(f"no share above {config.max_weight_share:g}")
    return f"{', '.join(limits)}; {seen}; {few}"


def _noise(config: RunConfig) -> str:
    """What the differential privacy of the corrections follows from."""
    if config.noise_multiplier == 0:
        return "none: no differential privacy"
    clips = {
        "residual_l2_clip": config.residual_l2_clip,
        "feature_clip": config.feature_clip,
        "target_clip": config.target_clip,
    }
    given = ", ".join(f"{name} {value:g}" for name, value in clips.items() if value is not None)
    return (
        f"Gaussian on residuals and moments, multiplier {config.noise_multiplier:g} ({given}); epsilon at delta "
        f"{config.privacy_delta:g} is in every site's report; students carry no noise"
    )
