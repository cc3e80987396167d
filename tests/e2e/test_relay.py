"""A coordinator, a relay of two sites and a site of its own, as processes: the model is that of one coordinator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fkd_common.choices import UNCODED
from fkd_common.tensors import decode

from .conftest import World
from .programs import PATIENCE_S, Launcher, address_of

pytestmark = pytest.mark.e2e

EXACT = [f"--{name.replace('_', '-')}={value}" for name, value in UNCODED.items()]
WHOLE = ("--rounds", "1", "--heartbeat-s", "1", "--heartbeat-limit-s", "30", *EXACT)


def test_a_relay_of_two_sites_and_a_third_one_make_the_model_of_three(
    world: World, launch: Launcher, tmp_path: Path
) -> None:
    server = launch.server(*WHOLE, "--min-clients", "2")
    relay = launch.relay(address_of(server), "north", "--min-clients", "2")
    sites = [launch.client(world.sites / name, address_of(relay)) for name in "ab"]
    sites.append(launch.client(world.sites / "c", address_of(server)))
    relay.wait_for("run_completed", within_s=PATIENCE_S * 3)
    mapped = Path(f"/proc/{relay.pid}/maps").read_text()
    assert {program.name: program.end() for program in (server, relay, *sites)} == {
        program.name: 0 for program in (server, relay, *sites)
    }
    assert "libtorch" not in mapped
    assert "lib_lightgbm" not in mapped
    assert all("Traceback" not in program.stderr for program in launch.started)

    for p in (relay, server):
        print(
            "\n".join(
                f"{p.name} {e.get('timestamp')} {e['event']} {e.get('phase')} {e.get('on')} {e.get('detail')}"
                for e in p.events
            )
        )
    one = flat(world, Launcher(tmp_path / "flat", world.cache, world.prepared))
    tree = launch.runs
    print(differences(tree / "run", one))
    assert max(differences(tree / "run", one).values()) < 1e-5
    assert (tree / "north" / "model.safetensors").read_bytes() == (
        tree / "run" / "model.safetensors"
    ).read_bytes()


def flat(world: World, launch: Launcher) -> Path:
    try:
        server = launch.server(*WHOLE, "--min-clients", "3")
        for name in "abc":
            launch.client(world.sites / name, address_of(server))
        assert [program.end() for program in launch.started] == [0, 0, 0, 0]
        return launch.runs / "run"
    finally:
        launch.stop()


def differences(ours: Path, theirs: Path) -> dict[str, float]:
    a, b = (decode((folder / "model.safetensors").read_bytes()) for folder in (ours, theirs))
    assert a.keys() == b.keys()
    return {name: float(np.abs(np.asarray(a[name], float) - b[name]).max()) for name in a}
