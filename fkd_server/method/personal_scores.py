"""How good the sites' own models are, as far as sites tell: two counts each, whatever the method."""

from __future__ import annotations

from collections.abc import Mapping

from fkd_server.method.federated_method import Json, VoteUpload

PERSONAL_CANDIDATE = "personal"
"""What sites' counts for their own models are filed under."""


def personal_scores(uploads: Mapping[str, VoteUpload]) -> dict[str, Json]:
    """How good personal models are at their own sites' held-out samples, all sites together."""
    total = sum(upload.num_validation for upload in uploads.values())
    if total == 0:
        return {}
    correct = sum(upload.correct[PERSONAL_CANDIDATE] for upload in uploads.values())
    return {"validation_samples": total, "validation_accuracy": {PERSONAL_CANDIDATE: correct / total}}
