"""Phases of which a round has several of a kind; names only."""

from __future__ import annotations

from fkd_common.pb import types_pb2 as types

REFINE_PHASES: tuple[int, ...] = tuple(types.Phase.Value(f"PHASE_REFINE_{step}") for step in range(1, 11))
"""The steps of a refinement, in order."""
