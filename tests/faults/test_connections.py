"""Connections that fail in every way a network has; the client's side notices, and goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fkd_client.transport import GrpcTransport, Keepalive
from fkd_common.choices import UNCODED
from fkd_common.errors import RefusedError, UnreachableError
from fkd_common.pb import coordinator_pb2 as pb
from fkd_common.pb import types_pb2 as types
from fkd_common.rpc import METHODS
from fkd_server.settings import ServerSettings

from ..client_network.conftest import Site
from ..client_network.coordinator import Served, serve, student_message, until
from .proxy import Proxy

QUICK = Keepalive(after_s=0.5, timeout_s=0.5)
"""Instead of 15 and 10 s."""


@pytest.fixture
def served(prepared: Path, tmp_path: Path) -> Iterator[Served]:
    """A run of one client whose student is 2.2 MB, its extractor 2.6."""
    settings = ServerSettings(
        prepared=prepared, runs=tmp_path / "run", min_clients=1, min_cohort=1, rounds=1, hidden=(1024,), dropout=(0.1,),
        **UNCODED,
        correction=(), personal=(), clients_per_round=1.0, heartbeat_s=0.2, heartbeat_limit_s=60.0,
    )  # fmt: skip
    with serve(settings, tmp_path) as served:
        yield served


@pytest.fixture
def proxy(served: Served) -> Iterator[Proxy]:
    with Proxy(served.address) as proxy:
        yield proxy


@pytest.fixture
def site(proxy: Proxy, tmp_path: Path) -> Iterator[Site]:
    """A client behind the proxy."""
    site = Site("a", GrpcTransport(proxy.address, keepalive=QUICK), tmp_path / "artifacts")
    yield site
    site.session.leave()


def during(what: Callable[[], object], meanwhile: Callable[[], None]) -> None:
    """Do something while something else happens to the network."""
    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        what()
    finally:
        thread.join(30.0)


def setup_key(site: Site) -> types.TaskKey:
    return types.TaskKey(run_id=site.run.run_id, phase=types.PHASE_SETUP)


@pytest.mark.scenario(33)
def test_a_download_survives_resets_and_arrives_whole(site: Site, proxy: Proxy) -> None:
    """Scenario 33: RST in the middle of a transfer, twice."""
    proxy.now.delay_s, proxy.now.slice_bytes = 0.002, 16_384
    accepted = proxy.accepted

    def cut() -> None:
        for _ in range(2):
            time.sleep(0.1)
            proxy.reset_all()

    reference = site.run.artifacts["extractor"]
    during(lambda: site.transfer.fetch_kept(reference, setup_key(site)), cut)  # verifies its digest
    assert proxy.accepted > accepted


@pytest.mark.scenario(4, 33)
def test_an_upload_survives_resets_and_counts_once(site: Site, proxy: Proxy, served: Served) -> None:
    """Scenarios 4 and 33: the connection is reset between and within chunks; what arrived is not sent again."""
    task = site.session.next_task().task
    proxy.now.delay_s, proxy.now.slice_bytes = 0.002, 16_384

    def cut() -> None:
        for _ in range(2):
            time.sleep(0.15)
            proxy.reset_all()

    during(lambda: site.transfer.submit(student_message(served, task.key)), cut)
    until(lambda: served.coordinator.over)


@pytest.mark.scenario(33)
@pytest.mark.parametrize("seconds", [0.3, 2.0], ids=["shorter than keepalive", "longer than keepalive"])
def test_a_partition_ends_and_the_session_goes_on(site: Site, proxy: Proxy, seconds: float) -> None:
    """Scenario 33: nothing passes, nobody is told, and new connections are ignored; 0.3 and 2 s with a keepalive
    of 0.5 + 0.5 s, as 8 and 60 s are with 15 + 10."""
    proxy.partition(seconds)
    began = time.monotonic()
    assert site.session.next_task().HasField("task")
    assert time.monotonic() - began < seconds + 15.0


@pytest.mark.scenario(33)
def test_a_half_open_connection_is_noticed_within_a_poll(site: Site, proxy: Proxy) -> None:
    """Scenario 33: a NAT forgot the connection, without RST; only pings tell, and gRPC's own limit is a minute."""
    accepted = proxy.accepted
    proxy.strand_all()
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"ping timeout|Stream removed"):
        site.transport.call(METHODS["Heartbeat"], b"", 20.0)
    assert time.monotonic() - began < 10.0
    assert site.session.next_task().HasField("task")
    assert proxy.accepted > accepted


@pytest.mark.scenario(33)
def test_a_line_with_nearly_a_second_to_and_fro_connects(proxy: Proxy, tmp_path: Path) -> None:
    """Scenario 33: connecting was given up after 0.2 s, and a satellite link never came to be."""
    proxy.now.delay_s = 0.4
    transport = GrpcTransport(proxy.address)
    try:
        request = pb.RegisterRequest(protocol_version=99, client_name="far")
        with pytest.raises(RefusedError, match="protocol 99"):
            transport.call(METHODS["Register"], request.SerializeToString(), 15.0)
    finally:
        transport.close()


@pytest.mark.scenario(33)
def test_a_coordinator_that_moved_is_found_where_the_name_now_leads(
    site: Site, proxy: Proxy, served: Served
) -> None:
    """Scenario 33: what used to be behind the address is gone, another is there; a new connection finds it."""
    with Proxy(served.address) as elsewhere:
        proxy.target = elsewhere.address
        proxy.reset_all()
        assert site.session.next_task().HasField("task")
        assert elsewhere.accepted > 0
        site.session.leave()


@pytest.mark.scenario(23)
def test_a_slow_line_that_moves_is_not_cut(site: Site, proxy: Proxy, served: Served) -> None:
    """Scenario 23, the other side: 1 KiB pieces, 2 ms each, are slow and not an attack."""
    task = site.session.next_task().task
    proxy.now.delay_s, proxy.now.slice_bytes = 0.002, 4096
    site.transfer.submit(student_message(served, task.key))
    until(lambda: served.coordinator.over)
