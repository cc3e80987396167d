"""The transport without sockets answers like the one with sockets."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fkd_bench.inprocess import InProcessTransport

from .tiny import Site, TinyRun, tiny_run


def site_in(run: TinyRun, name: str) -> Site:
    transport = InProcessTransport(run.service, heartbeat_s=60.0)
    return Site(name, lambda method, request: transport.call(method, request, 10.0))


def test_a_poll_that_does_not_want_to_wait_is_answered_at_once(tmp_path: Path) -> None:
    assert site_in(tiny_run(tmp_path), "a").poll(0.0).wait.reason == "1 of 2 clients ready: a"


def test_a_long_poll_is_released_by_what_it_waits_for(tmp_path: Path) -> None:
    run = tiny_run(tmp_path)
    a, b = site_in(run, "a"), site_in(run, "b")
    a.poll()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(a.poll, 9.0)
        assert b.poll(9.0).HasField("task")
        assert held.result().HasField("task")
    assert time.monotonic() - began < 5.0
