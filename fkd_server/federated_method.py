"""What the coordinator asks of a federated method's server half; no implementation lives here.

A method is two halves with named phases: the client turns a task into an upload, the server turns a phase's
uploads into artifacts. The coordinator owns cohorts, deadlines and quorums and knows nothing of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeAlias

from fkd_common.artifacts import Artifact

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class Participants(Enum):
    """Who takes part in a phase."""

    COHORT = "cohort"
    EVERYONE = "everyone"


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


@dataclass(frozen=True)
class TensorUpload:
    """A validated upload of tensors: the stored blob, n_k, r_k and (class-aware fusion only) n_{k,c}."""

    artifact: Artifact
    num_samples: int
    reliability: float = 1.0
    class_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class VoteUpload:
    """How many of `num_validation` samples each candidate gets right."""

    correct: Mapping[str, int]
    num_validation: int


@dataclass(frozen=True)
class NoUpload:
    """A finished task that uploads nothing."""


UploadContent: TypeAlias = TensorUpload | VoteUpload | NoUpload


class FederatedMethod(Protocol):
    """The server half of a federated method."""

    def phases(self, round_number: int) -> tuple[PhasePlan, ...]:
        """The phases of a round, in order; round 0 may have none."""

    def task(self, phase: int, client: str) -> TaskContent:
        """What a participant needs for its task."""

    def close(self, phase: int, uploads: Mapping[str, UploadContent]) -> dict[str, Json]:
        """Fold a phase's uploads, given in sorted client order, into new artifacts.

        Returns:
            What the round's record says about the phase.

        Raises:
            ValueError: The uploads have no aggregate (for example, all weights are zero).
        """

    def discard(self, uploads: Mapping[str, UploadContent]) -> None:
        """Forget the uploads of a phase that closes without a result."""
