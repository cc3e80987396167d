"""What a reader should know of a published model, as Markdown; nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping

from fkd_common.config import RunConfig
from fkd_common.model_file import ModelParts
from fkd_server.method.federated_method import Json


def model_card(
    model: ModelParts,
    digest: str,
    run_id: str,
    accuracy: Mapping[str, Json],
    round_number: int,
    stopped: str = "",
) -> str:
    """The card of a run's published model.

    Args:
        model: The model.
        digest: Its file's SHA-256.
        run_id: The run it comes from.
        accuracy: By candidate, in 0...1; empty if it was not evaluated.
        round_number: After which it was made.
        stopped: Why the run ended before its last round; empty if it did not.
    """
    header = model.header
    scores = {name: value for name, value in accuracy.items() if isinstance(value, float)}
    rows = "\n".join(f"| {name} | {value:.4f} |" for name, value in scores.items())
    table = f"| candidate | accuracy |\n|---|---|\n{rows}" if scores else "Not evaluated."
    ending = f" The run ended early: {stopped}." if stopped else ""
    return f"""# Model card

Global image classifier of run `{run_id}`, trained by federated distillation (FKD-RTM): the
model after round {round_number} of {header.config.rounds}.{ending}

| | |
|---|---|
| file | `model.safetensors`, sha256 `{digest}` |
| classes | {", ".join(header.classes)} |
| published candidate | {header.published} |
| student | hidden layers {header.config.hidden}, {header.config.norm} normalisation |
| extractor | sha256 `{header.extractor_sha256}` (not contained here) |
| configuration | sha256 `{header.config.sha256()}`, in `config.yaml` |
| aggregation | {_aggregation(header.config)} |
| noise | {_noise(header.config)} |

## Accuracy on the coordinator's test set

{table}

## Intended use and limits

Classifies images like those of the participating sites into the classes above. The candidate was chosen by
federated validation on the sites' held-out samples. It has not been assessed for any use on people; accuracy on
other populations, devices or sites is unknown until measured there.
"""


def _aggregation(config: RunConfig) -> str:
    """Who saw single uploads, and what limited them."""
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
    return f"{', '.join(limits)}; {seen}; nothing made of fewer than {config.min_cohort} sites"


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
