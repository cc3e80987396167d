"""How far a secure sum has come, between two of its steps; no cryptography is loaded for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fkd_common.artifacts import Artifact
from fkd_common.secure_sum.steps import Step, Summed


@dataclass(frozen=True)
class SumState:
    """How far a secure sum has come: references and names, nothing secret."""

    summed: Summed
    done: Step
    """The last step whose uploads are in."""
    roster: Artifact
    """Everybody's public keys."""
    members: tuple[str, ...]
    """Who published keys, sorted."""
    inboxes: Mapping[str, Artifact] = field(default_factory=dict)
    """By member that sent shares: the shares that the others sealed for it."""
    masked: Artifact | None = None
    """The sum of the masked tensors."""
    delivered: tuple[str, ...] = ()
    """Whose masked tensors are in it."""

    def artifacts(self) -> list[Artifact]:
        """What the sum still needs."""
        return [self.roster, *self.inboxes.values(), *([self.masked] if self.masked else [])]
