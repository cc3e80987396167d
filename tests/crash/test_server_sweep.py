"""The coordinator is killed at every named place in every phase; the run ends as if nothing had happened.

Runs of many rounds, side by side, in which the next coordinator is always armed for the next place of its run. One
run at one place in eight is quick; all places are for `make faults`.
Clients are never disturbed; what they were told, and what the coordinator's state says, is checked afterwards.
"""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fkd_common.errors import ExitCode

from .federation import NAMES, PHASES, Federation
from .history import check

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

BEFORE_ANY_PHASE = ("begin.committing", "begin.committed", "register.committing", "ready.committed")
LATER_PASSES = {"file": 4, "step": 2}
"""Places that are passed for several reasons within a phase: also at this pass, for the last of them."""


def places_of(trace: Path) -> list[str]:
    """Every place of every phase, in the order of the phases, as FKD_FAILPOINT takes them."""
    passed = Counter(trace.read_text().split())
    found = [f"{name}:kill:1" for name in BEFORE_ANY_PHASE]
    for phase in PHASES:
        names = sorted(name.partition("@")[0] for name in passed if name.endswith(f"@{phase}"))
        for name in names:
            found.append(f"{name}@{phase}:kill:1")
            later = LATER_PASSES.get(name.partition(".")[0])
            if later and passed[f"{name}@{phase}"] >= later:
                found.append(f"{name}@{phase}:kill:{later}")
    # The ledger is saved by the clock, and clients leave when the run is over: these are no steps of a phase.
    return [place for place in found if not place.startswith(("ledger.", "away."))]


def test_every_place_is_named_in_the_sweep(tmp_path: Path) -> None:
    """A place added to the code without being swept fails here."""
    in_code = set()
    for package in ("fkd_server", "fkd_common"):
        for file in Path(package).rglob("*.py"):
            in_code |= set(re.findall(r'failpoint\(f?"([a-z.]+|\{name\}\.[a-z]+)"\)', file.read_text()))
    transactions = {
        "open",
        "begin",
        "away",
        "register",
        "ready",
        "upload",
        "step",
        "ledger",
        "accuracy",
        "forget_client",
        "forget_upload",
    }
    named = {place for place in in_code if not place.startswith("{")}
    assert named == {
        "file.written", "file.synced", "file.renamed", "file.durable", "phase.opened", "phase.closing", "phase.folded",
        "phase.closed", "sweep.begun", "copy.synced", "copy.renamed", "call.refused", "submit.answering", "chunk.kept",
    }  # fmt: skip
    store = Path("fkd_server/store.py").read_text()
    assert set(re.findall(r'_transaction\("([a-z_]+)"\)', store)) == transactions


@pytest.mark.scenario(1, 2, 3, 5)
@pytest.mark.parametrize(
    "rounds, runs, one_in",
    [
        pytest.param(20, 1, 8, id="some"),
        # Dealt out among runs side by side, since most of the time goes by waiting.
        pytest.param(40, 3, 1, id="all", marks=pytest.mark.slow),
    ],
)
def test_a_coordinator_killed_at_any_place_loses_nothing_and_counts_nothing_twice(
    tmp_path: Path, seen: Any, rounds: int, runs: int, one_in: int
) -> None:
    """Scenarios 1, 2, 3, 5; invariants I1-I5."""
    trace = tmp_path / "trace"
    undisturbed = Federation(tmp_path / "undisturbed", rounds)
    disturbed = [Federation(tmp_path / f"disturbed{number}", rounds) for number in range(runs)]
    try:
        server = undisturbed.server(FKD_FAILPOINT_TRACE=str(trace))
        clients = [undisturbed.client(name) for name in NAMES]
        assert [program.end(180.0) for program in (server, *clients)] == [ExitCode.OK] * 4

        places = places_of(trace)[::one_in]
        assert len(places) >= 10
        with ThreadPoolExecutor(runs) as at_once:
            dealt = [places[number::runs] for number in range(runs)]
            back = [seconds for run in at_once.map(killed_at, disturbed, dealt) for seconds in run]

        for federation in disturbed:
            verdict = check(federation.run_folder, federation.acknowledgements())
            assert verdict.holds, verdict
            assert verdict.acknowledged == rounds * len(PHASES) * len(NAMES)
            assert federation.model_hash() == undisturbed.model_hash()
        seen(
            f"{len(places)} kills, 0 lost, 0 twice, same model; back in {median(back):.1f} s (max {max(back):.1f})"
        )
    finally:
        for federation in (undisturbed, *disturbed):
            federation.stop()


def killed_at(federation: Federation, places: list[str]) -> list[float]:
    """Play a run whose coordinator dies at every one of `places`, in this order; the seconds it was away."""
    back = []
    server = federation.server(FKD_FAILPOINT=places[0])
    clients = [federation.client(name) for name in NAMES]
    for place, following in zip(places, [*places[1:], ""], strict=True):
        assert server.end() == -signal.SIGKILL, f"never died at {place}"
        died = time.monotonic()
        server = federation.server(FKD_FAILPOINT=following)
        with contextlib.suppress(AssertionError):  # it may be armed for a place before that
            server.wait_for("serving")
            back.append(time.monotonic() - died)
    assert [program.end(180.0) for program in (server, *clients)] == [ExitCode.OK] * 4
    return back
