"""A method at a site that lacks it, or whose code is wrong there: one sentence, and the others go on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fkd_bench.inprocess import InProcessTransport
from fkd_client.client import Client, ClientOptions
from fkd_client.display import LogDisplay
from fkd_client.embedding import embed
from fkd_client.extractor import load_extractor
from fkd_common.errors import MethodError, UsageError
from fkd_common.exchange_method import MODEL, Aggregate, Site, State
from fkd_common.rpc import Transport
from fkd_common.service_manager import ServiceManager
from fkd_common.tensors import encode
from fkd_server.prepare import ANCHORS_FILE, CLASSES_KEY, EXTRACTOR_FILE
from fkd_server.run import Run, assemble
from fkd_server.settings import ServerSettings
from fkd_shards.shard import write_shard
from tests.export.finished_run import IMAGE_SIZE, random_extractor
from tests.methods.plain import PLAIN, Plain, install, uninstall

from .coordinator import CLASSES, PATIENCE_S, Watched

GOOD = Plain.local_update


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a coordinator serves whose extractor is one, and the data of two sites."""
    folder, rng = tmp_path_factory.mktemp("place"), np.random.default_rng(0)
    prepared, extractor = folder / "prepared", random_extractor()
    prepared.mkdir()
    images = rng.integers(0, 255, (10, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.uint8)
    anchors = {"images": images[:2], "embeddings": embed(load_extractor(extractor), images[:2])}
    (prepared / EXTRACTOR_FILE).write_bytes(extractor)
    (prepared / ANCHORS_FILE).write_bytes(encode(anchors, {CLASSES_KEY: json.dumps(CLASSES)}))
    for name in "ab":
        write_shard(folder / name, images, np.arange(10) % 2, classes=CLASSES, source="nowhere")
    return folder


@pytest.fixture
def run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    install(monkeypatch)
    keys: dict[str, Any] = {"method": PLAIN, "rounds": 2, "min_cohort": 1, "clients_per_round": 1.0}
    settings = ServerSettings(**keys, prepared=place / "prepared", runs=tmp_path / "run")
    assembled = assemble(settings, tmp_path / "cache")
    yield assembled
    assembled.close()


def site(run: Run, place: Path, name: str, transport: Transport | None = None) -> Client:
    options = ClientOptions(
        data=str(place / name), name=name, device="cpu", threads=1, test=None, max_bad=0.0, patience_s=PATIENCE_S,
        runs=run.folder.path.parent, cache=place / "cache", artifacts=place / "artifacts",
    )  # fmt: skip
    transport = transport or InProcessTransport(run.service, run.config.heartbeat_s)
    return Client(options, transport, LogDisplay(name, ServiceManager.from_environment()))


def play(*clients: Client) -> list[BaseException | None]:
    """Take part, each in a thread of its own; how each ended."""
    with ThreadPoolExecutor(len(clients)) as pool:
        parts = [pool.submit(client.run) for client in clients]
        ended = [part.exception() for part in parts]
    for client in clients:
        client.close()
    return ended


def test_a_site_that_lacks_the_method_fetches_nothing(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uninstall(monkeypatch)
    watched = Watched(InProcessTransport(run.service, run.config.heartbeat_s))
    (ended,) = play(site(run, place, "a", watched))
    assert isinstance(ended, UsageError)
    assert "install the package with the entry point plain of fkd.methods" in str(ended)
    assert watched.calls == ["Register", "Leave"]


def in_round_1_at_a(wrong: Callable[[Site], Any]) -> Callable[..., Any]:
    def local_update(self: Plain, site: Site, received: State, round_number: int) -> Any:
        if (site.name, round_number) != ("a", 1):
            return GOOD(self, site, received, round_number)
        return wrong(site)

    return local_update


def forgets(site: Site) -> Any:
    site.memory["mine"] = [1.0]  # type: ignore[assignment]
    return {"w": np.zeros(3, np.float32)}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda site: {}["private"], "local_update failed with KeyError: 'private'"),
        (lambda site: {"w": np.zeros(2, np.float32)}, "local_update returned an upload of another layout: tensor 'w'"),
        (forgets, "into site.memory something with group 'mine' as list"),
    ],
)  # fmt: skip
def test_a_sites_mistake_is_told_with_its_line_and_the_run_goes_on(
    wrong: Callable[[Site], Any], said: str, run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plain, "local_update", in_round_1_at_a(wrong))
    assert play(site(run, place, "a"), site(run, place, "b")) == [None, None]
    first, second = (record["phases"]["exchange"] for record, _ in run.store.rounds())
    assert first["failed"].keys() == {"a"}
    assert first["failed"]["a"].startswith(
        "method plain, round 1 (tests/client_network/test_method_at_a_site.py:"
    )
    assert said in first["failed"]["a"]
    assert second["returned"] == ["a", "b"]
    events = [event for event in run.overview.all_events(0) if event.name == "client_failed"]
    assert [said in event.detail for event in events] == [True]


def test_in_one_process_a_coordinators_mistake_ends_its_sites_at_once(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plain, "aggregate", lambda *given: Aggregate({MODEL: {}}))
    for ended in play(site(run, place, "a"), site(run, place, "b")):
        assert isinstance(ended, MethodError)
        assert "aggregate returned group 'model' of another layout" in str(ended)
