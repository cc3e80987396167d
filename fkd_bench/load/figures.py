"""What a measurement found, by the names and in the units that are printed; measures nothing itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fkd_bench.load.clients import Seen
from fkd_bench.load.settings import LoadSettings
from fkd_common.tensors import Tensors

Json = dict[str, Any]

COMPARED = (
    "wall_s_per_round", "server_cpu_s_per_round", "client_cpu_s_per_round", "server_peak_rss_mb", "wire_bytes",
    "start_to_first_round_s",
)  # fmt: skip
"""Figures that mean the same for every system."""


@dataclass(frozen=True)
class Mark:
    """One moment of a run, and what had been used by then."""

    at_s: float
    """Of the clock."""
    server_cpu_s: float
    client_cpu_s: float
    wire_bytes: int
    """Through the proxy, both directions; 0 without one."""


@dataclass(frozen=True)
class Measured:
    """One run."""

    started_s: float
    """When the server's process was started, by the clock."""
    first: Mark
    """As the first round was opened."""
    last: Mark
    """As the last round was over."""
    server_peak_rss_bytes: int
    seen: Seen | None = None
    """By the clients, where they tell."""


def describe(settings: LoadSettings, tensors: Tensors, timed: Measured, wired: Measured | None) -> Json:
    """The figures of one system; bytes are those of one client in one round, both directions together.

    Args:
        settings: What was asked for.
        tensors: What was exchanged.
        timed: The run that is measured.
        wired: Another, of `wire_rounds` rounds, through the proxy.
    """
    rounds, first, last = settings.rounds, timed.first, timed.last
    wire = (wired.last.wire_bytes - wired.first.wire_bytes) / settings.wire_rounds if wired else None
    return {
        "wall_s_per_round": round((last.at_s - first.at_s) / rounds, 4),
        "server_cpu_s_per_round": round((last.server_cpu_s - first.server_cpu_s) / rounds, 4),
        "client_cpu_s_per_round": round((last.client_cpu_s - first.client_cpu_s) / rounds, 4),
        "server_peak_rss_mb": round(timed.server_peak_rss_bytes / 1e6, 1),
        **_messages(settings, tensors, timed.seen),
        "wire_bytes": None if wire is None else round(wire / settings.clients),
        "start_to_first_round_s": round(first.at_s - timed.started_s, 2),
        **({"rpc": _calls(timed.seen.rpc_ms)} if timed.seen else {}),
        "clients": settings.clients,
        "rounds": rounds,
        "model": settings.model,
        "parameters": sum(array.size for array in tensors.values()),
    }


def ratios(ours: Json, theirs: Json) -> Json:
    """Theirs over ours, of the figures that both have."""
    return {
        name: round(theirs[name] / ours[name], 2) for name in COMPARED if theirs.get(name) and ours.get(name)
    }


def _messages(settings: LoadSettings, tensors: Tensors, seen: Seen | None) -> Json:
    if seen is None:  # the tensors, once each way
        return {"payload_bytes": 2 * sum(array.nbytes for array in tensors.values())}
    client_rounds = settings.clients * settings.rounds
    return {
        "payload_bytes": round(seen.payload_bytes / client_rounds),
        "message_bytes": round(seen.message_bytes / client_rounds),
    }


def _calls(rpc_ms: Mapping[str, Sequence[float]]) -> Json:
    def calls_of(taken: Sequence[float]) -> Json:
        p50, p99 = (round(float(value), 2) for value in np.percentile(taken, (50, 99)))
        return {"count": len(taken), "p50_ms": p50, "p99_ms": p99}

    return {name: calls_of(rpc_ms[name]) for name in sorted(rpc_ms)}
