"""What the coordinator asks of a federated method's server half; no implementation lives here.

A method is two halves with named phases: the client turns a task into an upload, the server turns a phase's
uploads into artifacts. The coordinator owns cohorts, deadlines and quorums and knows nothing of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fkd_common.artifacts import Artifact
from fkd_common.config import RunConfig
from fkd_common.method.student_layout import TensorSpec
from fkd_common.model_file import PublishedModel

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class Participants(Enum):
    """Who takes part in a phase."""

    COHORT = "cohort"
    EVERYONE = "everyone"
    CHOSEN = "those that FederatedMethod.chosen names, and nobody in their place"


class BelowQuorum(Enum):
    """What happens to a phase that misses its quorum."""

    FOLLOW_POLICY = "extend or abort, as configured"
    SKIP = "go on without its result"


@dataclass(frozen=True)
class PhasePlan:
    """One phase of a round."""

    phase: int
    participants: Participants
    below_quorum: BelowQuorum
    needs_quorum: bool = True


@dataclass(frozen=True)
class TaskContent:
    """What a task of a phase tells a client: artifacts by name and the phase's parameters."""

    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    anchor_lambda: float = 0.0
    moment_lambdas: tuple[float, ...] = ()
    embedding_block_known: bool = False
    published: str = ""
    best_moments: str = ""
    delivered: tuple[str, ...] = ()
    """Last step of a secure sum: whose masked tensors are in it."""


@dataclass(frozen=True)
class TensorUpload:
    """A validated upload of tensors: the stored blob, n_k, r_k and (class-aware fusion only) n_{k,c}."""

    artifact: Artifact
    num_samples: int
    reliability: float = 1.0
    class_counts: tuple[int, ...] = ()
    relay: bool = False
    """Whether it is the sum of several sites', who may be others the next time."""


@dataclass(frozen=True)
class SecureUpload:
    """A client's answer to one step of a secure sum: the stored blob, and nothing about the client's data."""

    artifact: Artifact


@dataclass(frozen=True)
class VoteUpload:
    """How many of `num_validation` samples each candidate gets right."""

    correct: Mapping[str, int]
    num_validation: int


@dataclass(frozen=True)
class NoUpload:
    """A finished task that uploads nothing."""


UploadContent: TypeAlias = TensorUpload | SecureUpload | VoteUpload | NoUpload


def stored_blob(upload: UploadContent) -> Artifact | None:
    """The file an upload came as, if it came as one."""
    return upload.artifact if isinstance(upload, TensorUpload | SecureUpload) else None


UPLOAD_KINDS: Mapping[str, TypeAdapter[Any]] = {
    kind.__name__: TypeAdapter(kind) for kind in (TensorUpload, SecureUpload, VoteUpload, NoUpload)
}
"""Every kind of upload, by name, to and from JSON."""


class FederatedMethod(Protocol):
    """The server half of a federated method."""

    config: RunConfig
    classes: tuple[str, ...]
    """Class names in global order."""
    embedding_dim: int
    anchor_embeddings: NDArray[np.float32]
    """(m, d)"""

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """The phases of a round, in order; round 0 may have none."""

    def chosen(self, phase: int) -> tuple[str, ...]:
        """Who takes part in a phase whose participants are the method's choice, sorted; may be nobody."""

    def needed(self, phase: int) -> int:
        """Uploads without which the phase has no result, whatever the quorum is."""

    def task(self, phase: int, client: str) -> TaskContent:
        """What a participant needs for its task."""

    def artifacts(self) -> dict[str, Artifact]:
        """What clients may fetch besides their tasks' inputs."""

    def candidates(self) -> list[str]:
        """What a vote compares; empty where nothing is voted on."""

    def secure_schema(self, phase: int, client: str) -> Mapping[str, TensorSpec] | None:
        """Names, shapes and dtypes of a client's answer to a step of a secure sum; None if the phase is none."""

    def can_count(self, phase: int, upload: UploadContent) -> bool:
        """Whether an accepted upload can enter the phase's result: not one over no samples, for example."""

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Fold a phase's uploads, given in sorted client order, into new artifacts.

        Returns:
            What the round's record says about the phase.

        Raises:
            ValueError: The uploads have no aggregate (for example, all weights are zero).
        """

    def sent_by_a_site(self) -> str:
        """What leaves a site in a run, in a few words of Markdown, for the reader of a model's card."""

    def publishes(self, phases: Collection[str]) -> bool:
        """Whether a round with these phases ends with a model to publish."""

    def model(self) -> PublishedModel | None:
        """The current global model; None where the method has none."""

    def snapshot(self) -> dict[str, Json]:
        """All that later phases depend on, as JSON: artifacts by their hashes."""

    def restore(self, snapshot: Mapping[str, Json]) -> None:
        """Go back to a snapshot: after a crash, or because what followed it could not be made durable."""

    def in_use(self) -> set[str]:
        """Hashes of the artifacts the state refers to; all others may be removed once it is durable."""
