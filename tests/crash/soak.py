"""`make soak MINUTES=10`: kills and partitions at random over a live run of five real clients; prints what survived.

The run is the method at a small size on handwritten digits, with every kind of phase. It is played once in peace, and
then again and again with something going wrong every few seconds, until the time is up. All must publish the same bits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from fkd_server.cli import main as server_main
from fkd_shards.create import CreateRequest, create
from fkd_shards.partitions import Partition
from tests.e2e.conftest import random_extractor
from tests.e2e.programs import Program
from tests.faults.proxy import Proxy

from .federation import free_port
from .history import Acknowledged, Verdict, check

NAMES = [f"shard{index}" for index in range(5)]
ROUNDS = 40

TROUBLES = (
    "server killed",
    "server killed",
    "client killed",
    "client killed",
    "connections reset",
    "partition",
)

METHOD = [
    "--hidden", "32,16", "--dropout", "0.1,0.1", "--local-steps", "20", "--batch-size", "16", "--teacher-trees", "5",
    "--residual-trees", "10", "--lambda-grid", "1,100", "--clients-per-round", "1", "--min-clients", "5",
    "--quorum", "1", "--residual-every", "2", "--personal-every", "5", "--personal", "closed_form,prior,blend",
    "--heartbeat-s", "0.5", "--heartbeat-limit-s", "5", "--phase-deadline-s", "300",
]  # fmt: skip


class Federation:
    """A coordinator behind a proxy, and five clients that reach it through that."""

    def __init__(self, folder: Path, world: Path, proxy: Proxy) -> None:
        self.folder, self.proxy = folder, proxy
        self.restart_s: list[float] = []
        self._world = world
        self._port = int(proxy.target.rpartition(":")[2])
        self._past: list[Program] = []
        self.server = self._start_server()
        self.server.wait_for("serving")
        self.clients = {name: self._start_client(name) for name in NAMES}

    def kill_server(self) -> None:
        """Kill the coordinator and start it again."""
        self.server.signal(signal.SIGKILL)
        self.server.end()
        self._past.append(self.server)
        died = time.monotonic()
        self.server = self._start_server()
        self.server.wait_for("serving")
        self.restart_s.append(time.monotonic() - died)

    def kill_client(self, name: str) -> None:
        """Kill a client and start it again."""
        self.clients[name].signal(signal.SIGKILL)
        self.clients[name].end()
        self._past.append(self.clients[name])
        self.clients[name] = self._start_client(name)

    def finish(self) -> tuple[str, Verdict]:
        """Wait for the end of the run; the model's hash, and what the history shows."""
        codes = {program.name: program.end(900.0) for program in (self.server, *self.clients.values())}
        if any(codes.values()):
            raise SystemExit(f"exit codes {codes}; the coordinator said {self.server.said}")
        programs = [*self._past, *self.clients.values()]
        events = [event for program in programs for event in program.events]
        acknowledged = [Acknowledged.of(event) for event in events if event["event"] == "acknowledged"]
        run = self.folder / "run" / "soak"
        return json.loads((run / "summary.json").read_text())["model_hash"], check(run, acknowledged)

    def stop(self) -> None:
        """End every process."""
        for program in (self.server, *self.clients.values()):
            program.stop()

    def _start_server(self) -> Program:
        flags = ["--prepared", str(self._world / "prepared"), "--port", str(self._port), "--run-id", "soak"]
        runs = ["--runs", str(self.folder / "run"), "--rounds", str(ROUNDS)]
        return Program("server", ["fkd_server.cli", *flags, *runs, *METHOD], _environment(self._world))

    def _start_client(self, name: str) -> Program:
        flags = [
            "--data",
            str(self._world / "digits" / name),
            "--server",
            self.proxy.address,
            "--threads",
            "1",
        ]
        runs = ["--runs", str(self.folder / "clients")]
        return Program(name, ["fkd_client.cli", *flags, *runs], _environment(self._world))


def torment(federation: Federation, until: float, rng: random.Random) -> Counter[str]:
    """Kill and partition at random until the time is up or the run is nearly over; how often each happened."""
    done: Counter[str] = Counter()
    while time.monotonic() < until:
        time.sleep(rng.uniform(0.5, 6.0))
        if federation.server.ended or any(program.ended for program in federation.clients.values()):
            break
        what = rng.choice(TROUBLES)
        if what == "server killed":
            federation.kill_server()
        elif what == "client killed":
            federation.kill_client(rng.choice(NAMES))
        elif what == "connections reset":
            federation.proxy.reset_all()
        else:
            federation.proxy.now.stalled = federation.proxy.now.deaf = True
            time.sleep(rng.uniform(0.2, 12.0))
            federation.proxy.now.stalled = federation.proxy.now.deaf = False
            federation.proxy.reset_all()  # what was accepted meanwhile leads nowhere
        done[what] += 1
        at = next((event["round"] for event in reversed(federation.server.events) if "round" in event), "?")
        print(f"{time.strftime('%H:%M:%S')} {what}; round {at}", file=sys.stderr, flush=True)
    return done


def make_world(folder: Path) -> None:
    """Five sites of digits, and what the coordinator serves."""
    create(
        CreateRequest(
            "digits", len(NAMES), Partition.parse("iid"), 0, folder / "digits", anchors=20, limit=400
        )
    )
    (folder / "extractor.safetensors").write_bytes(random_extractor())
    given = [
        "--extractor",
        str(folder / "extractor.safetensors"),
        "--anchors",
        str(folder / "digits" / "anchors"),
    ]
    if server_main(["prepare", *given, "--out", str(folder / "prepared"), "--threads", "1"]):
        raise SystemExit("preparation failed")


@dataclass
class Outcome:
    """What one run, or several together, came to."""

    models: set[str] = field(default_factory=set)
    troubles: Counter[str] = field(default_factory=Counter)
    restart_s: list[float] = field(default_factory=list)
    acknowledged: int = 0
    lost: list[str] = field(default_factory=list)
    counted_twice: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    runs: int = 0

    def play(self, folder: Path, world: Path, until: float, rng: random.Random) -> None:
        """One run, in peace if `until` is past; adds what it shows."""
        with Proxy(f"127.0.0.1:{free_port()}") as proxy:
            federation = Federation(folder, world, proxy)
            try:
                self.troubles += torment(federation, until, rng)
                model, verdict = federation.finish()
            finally:
                federation.stop()
        self.runs += 1
        self.models.add(model)
        self.restart_s += federation.restart_s
        self.acknowledged += verdict.acknowledged
        self.lost += verdict.lost
        self.counted_twice += verdict.counted_twice
        self.broken += verdict.broken


def _environment(world: Path) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if not key.startswith("FKD_")}
    return {**own, "OMP_NUM_THREADS": "1", "FKD_CACHE": str(world / "cache")}


def main() -> int:
    """Play both runs, print a table; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    peace, war, rng = Outcome(), Outcome(), random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="fkd-soak-") as name:
        folder = Path(name)
        make_world(folder)
        print(f"{ROUNDS} rounds in peace", file=sys.stderr, flush=True)
        peace.play(folder / "peace", folder, 0.0, rng)
        print(f"{given.minutes:g} minutes of trouble", file=sys.stderr, flush=True)
        until = time.monotonic() + 60 * given.minutes
        while time.monotonic() < until:
            war.play(folder / f"war-{war.runs}", folder, until, rng)
    same = war.models == peace.models
    rows: dict[str, object] = {
        "runs of 5 clients, 40 rounds": war.runs,
        **dict(sorted(war.troubles.items())),
        "restart to serving, median s": round(median(war.restart_s), 2) if war.restart_s else "-",
        "restart to serving, max s": round(max(war.restart_s), 2) if war.restart_s else "-",
        "acknowledged uploads": war.acknowledged,
        "lost": len(war.lost),
        "double-counted": len(war.counted_twice),
        "other invariants broken": len(war.broken),
        "final hash": f"{'equals' if same else 'DIFFERS from'} the undisturbed run's, {min(peace.models)[:12]}",
    }
    for what, value in rows.items():
        print(f"{what:32} {value}")
    problems = [*war.lost, *war.counted_twice, *war.broken]
    for problem in problems:
        print(f"  {problem}")
    return 0 if same and not problems else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
