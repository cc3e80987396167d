"""Who is sampled into a round, and who is asked in a phase of it; knows no sessions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from fkd_common.config import RunConfig
from fkd_server.method.federated_method import FederatedMethod, Participants, PhasePlan
from fkd_server.run_state import PhaseAtWork, Position


def sample_cohort(config: RunConfig, ready: Sequence[str], round_number: int) -> tuple[str, ...]:
    """S_t: uniform without replacement, the same for equal seed, round and clients.

    Args:
        config: The run's.
        ready: Names of the clients that can be asked, sorted.
        round_number: t.

    Returns:
        Names, sorted.
    """
    size = max(config.min_cohort, round(config.clients_per_round * len(ready)))
    rng = np.random.default_rng([config.seed, round_number])
    return tuple(sorted(rng.choice(ready, size=min(size, len(ready)), replace=False).tolist()))


def asked_in(plan: PhasePlan, at: Position, ready: Sequence[str], method: FederatedMethod) -> tuple[str, ...]:
    """Who takes part in a phase that is about to open.

    Args:
        plan: The phase.
        at: Where the run stands.
        ready: Names of the clients that can be asked.
        method: Asked where the choice is its own.

    Returns:
        Names, sorted.
    """
    if plan.participants is Participants.EVERYONE:
        # Also who was there when the round began and is away: a class only it holds would be missing.
        return tuple(sorted({*ready, *at.record["clients"]}))
    if plan.participants is Participants.CHOSEN:
        return method.chosen(plan.phase)
    return at.cohort  # as sampled: a member that is away may be back before the deadline


def stand_ins_for(
    plan: PhasePlan, work: PhaseAtWork, counting: Collection[str], ready: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Who can be asked in place of participants without result.

    Args:
        plan: The open phase.
        work: The same, at work.
        counting: Participants whose upload can enter the result.
        ready: Names of the clients that can be asked, sorted.

    Returns:
        The participants without result, and as many of the others, or fewer; each sorted.
    """
    absent = sorted(set(work.participants) - set(counting))
    if plan.participants is Participants.CHOSEN:
        return absent, []  # nobody else can do it
    return absent, [name for name in ready if name not in work.participants][: len(absent)]


def quorum_of(config: RunConfig, clients: int) -> int:
    """How many of so many clients are enough."""
    return max(config.min_cohort, math.ceil(config.quorum * clients))
