"""A client is killed before and after each of its calls, in every phase; the run ends as if nothing had happened.

One place in four is quick; all places are for `make faults`.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fkd_common.errors import ExitCode

from .federation import NAMES, PHASES, Federation
from .history import check

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BY_THE_CLOCK = ("Heartbeat", "Leave")
"""Called when time has passed or the run is over, not at a step of the run."""


def places_of(trace: Path) -> list[str]:
    """Before and after each kind of call, in each phase, as FKD_FAILPOINT takes them."""
    passed = Counter(trace.read_text().split())
    found = ["Register.calling:kill", "Register.answered:kill", "GetChunk.answered:kill"]
    for phase in PHASES:
        names = sorted(name.partition("@")[0] for name in passed if name.endswith(f"@{phase}"))
        found += [f"{name}@{phase}:kill" for name in names if not name.startswith(BY_THE_CLOCK)]
    return found


@pytest.mark.scenario(4, 5)
@pytest.mark.parametrize(
    "rounds, one_in",
    [pytest.param(20, 4, id="some"), pytest.param(60, 1, id="all", marks=pytest.mark.slow)],
)
def test_a_client_killed_around_any_call_costs_nothing(
    tmp_path: Path, seen: Any, rounds: int, one_in: int
) -> None:
    """Scenarios 4, 5; invariants I1-I5: cut uploads resume or start over, lost answers are given again."""
    trace = tmp_path / "trace"
    undisturbed = Federation(tmp_path / "undisturbed", rounds)
    disturbed = Federation(tmp_path / "disturbed", rounds)
    try:
        programs = [undisturbed.server(), *(undisturbed.client(name) for name in NAMES[1:])]
        programs.append(undisturbed.client(NAMES[0], FKD_FAILPOINT_TRACE=str(trace)))
        assert [program.end(180.0) for program in programs] == [ExitCode.OK] * 4

        places = places_of(trace)[::one_in]
        assert len(places) >= 10
        programs = [disturbed.server(), *(disturbed.client(name) for name in NAMES[1:])]
        client = disturbed.client(NAMES[0], FKD_FAILPOINT=places[0])
        for place, following in zip(places, [*places[1:], ""], strict=True):
            assert client.end() == -signal.SIGKILL, f"never died at {place}"
            client = disturbed.client(NAMES[0], FKD_FAILPOINT=following)
        assert [program.end(180.0) for program in (*programs, client)] == [ExitCode.OK] * 4

        verdict = check(disturbed.run_folder, disturbed.acknowledgements())
        assert verdict.holds, verdict
        assert disturbed.model_hash() == undisturbed.model_hash()
        seen(f"{len(places)} kills, {verdict.acknowledged} acknowledged, 0 lost, 0 twice, same model")
    finally:
        undisturbed.stop()
        disturbed.stop()
