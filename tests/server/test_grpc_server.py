"""A real server on loopback: long polls, status codes, limits; the client side is the one clients use."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from fkd_client.transport import GrpcTransport
from fkd_common import errors
from fkd_common.rpc import MAX_MESSAGE_BYTES, METHODS, PREPARING
from fkd_common.tensors import encode
from fkd_server.grpc_server import GrpcServer

from .tiny import STUDENT, Site, TinyRun, filled, inline, tiny_run

_Result = TypeVar("_Result")


@asynccontextmanager
async def serving(run: TinyRun) -> AsyncIterator[tuple[GrpcTransport, int]]:
    """A started server and a transport to it."""
    server = GrpcServer()
    port = server.listen("127.0.0.1", 0)
    await server.start(run.service, run.admin)
    transport = GrpcTransport(f"127.0.0.1:{port}")
    try:
        yield transport, port
    finally:
        transport.close()
        await server.stop(0.0)


def site_over(transport: GrpcTransport, name: str) -> Site:
    return Site(name, lambda method, request: transport.call(method, request, 10.0))


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def talk(run: TinyRun, conversation: Callable[[GrpcTransport], _Result]) -> _Result:
    """Serve a run while a client's thread talks to it."""

    async def both() -> _Result:
        async with serving(run) as (transport, _):
            return await asyncio.to_thread(conversation, transport)

    return asyncio.run(both())


@pytest.fixture
def run(tmp_path: Path) -> TinyRun:
    return tiny_run(tmp_path)


def test_a_round_over_the_network_is_the_round_without_one(run: TinyRun, tmp_path: Path) -> None:
    def one_round(a: Site, b: Site) -> None:
        for site in (a, b):
            site.poll()
        for value, site in enumerate((a, b)):
            task = site.poll().task
            site.fetch(task.inputs[0], task.key)
            site.submit_student(1, filled(run.method, float(value)))

    talk(run, lambda transport: one_round(site_over(transport, "a"), site_over(transport, "b")))
    local = tiny_run(tmp_path / "local")
    one_round(local.site("a"), local.site("b"))
    assert run.method.state.student.sha256 == local.method.state.student.sha256
    assert run.service.ledger.to_csv() == local.service.ledger.to_csv()


def test_a_long_poll_is_released_by_what_it_waits_for(run: TinyRun) -> None:
    async def conversation() -> float:
        async with serving(run) as (transport, _):
            a = await asyncio.to_thread(site_over, transport, "a")
            assert (await asyncio.to_thread(a.poll)).HasField("wait")
            began = time.monotonic()
            held = asyncio.create_task(asyncio.to_thread(a.poll, 9.0))
            b = await asyncio.to_thread(site_over, transport, "b")
            assert (await asyncio.to_thread(b.poll)).HasField("task")
            assert (await held).HasField("task")
            return time.monotonic() - began

    assert asyncio.run(conversation()) < 5.0


def test_a_poll_that_does_not_want_to_wait_is_answered_at_once(run: TinyRun) -> None:
    answer = talk(run, lambda transport: site_over(transport, "a").poll(0.0))
    assert answer.wait.reason == "1 of 2 clients ready: a"


@pytest.mark.parametrize("wait_s", [float("nan"), -1.0, -float("inf")])
def test_an_impossible_wait_is_none(run: TinyRun, wait_s: float) -> None:
    assert talk(run, lambda transport: site_over(transport, "a").poll(wait_s)).HasField("wait")


def refused(run: TinyRun, conversation: Callable[[Site, Site], Any]) -> errors.FkdError:
    """What a client sees of a refusal."""

    def ready(transport: GrpcTransport) -> Any:
        a, b = site_over(transport, "a"), site_over(transport, "b")
        a.poll()
        b.poll()
        return conversation(a, b)

    with pytest.raises(errors.FkdError) as error:
        talk(run, ready)
    return error.value


CONVERSATIONS: dict[str, tuple[Callable[[TinyRun, Site, Site], Any], type[errors.FkdError], str]] = {
    "NaN": (
        lambda run, a, b: a.submit_student(1, filled(run.method, np.nan)),
        errors.InvalidUploadError,
        "NOT_FINITE",
    ),
    "future round": (
        lambda run, a, b: a.submit_student(2, filled(run.method, 1.0)),
        errors.StaleError,
        "ROUND_CLOSED",
    ),
    "another upload": (
        lambda run, a, b: [a.submit_student(1, filled(run.method, value)) for value in (1.0, 2.0)],
        errors.ConflictError,
        "ALREADY_SUBMITTED",
    ),
    "second process": (
        lambda run, a, b: [run.site("a"), a.poll()],
        errors.SupersededError,
        "SESSION_SUPERSEDED",
    ),
    "unknown artifact": (
        lambda run, a, b: a.call("GetChunk", key=a.key(1, STUDENT), sha256=bytes(32), length=1),
        errors.NotFoundError,
        "NOT_FOUND",
    ),
    "damaged": (
        lambda run, a, b: a.call(
            "SubmitStudent",
            key=a.key(1, STUDENT),
            upload={"sha256": bytes(32), "size": 3, "inline": b"abc"},
            num_samples=1,
        ),
        errors.CorruptTransferError,
        "DIGEST_MISMATCH",
    ),
    "8 GB": (
        lambda run, a, b: a.call("PutChunk", key=a.key(1, STUDENT), sha256=bytes(32), size=8 << 30),
        errors.TooLargeError,
        "TOO_LARGE",
    ),
    "other version": (
        lambda run, a, b: a.call("Register", protocol_version=99, client_name="c"),
        errors.RefusedError,
        "PROTOCOL_VERSION",
    ),
}


@pytest.mark.scenario(6, 7, 10, 21, 22, 25, 34)
@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_client_sees_the_kind_and_reason_of_a_refusal(run: TinyRun, name: str) -> None:
    """Scenarios 6, 7, 10, 21, 22, 25, 34."""
    conversation, kind, reason = CONVERSATIONS[name]
    error = refused(run, lambda a, b: conversation(run, a, b))
    assert (type(error), error.reason) == (kind, reason)


def test_a_refusal_with_a_long_reason_still_arrives_as_what_it_is(run: TinyRun) -> None:
    many = {f"{'n' * 40}{i}": np.zeros(0, dtype=np.float32) for i in range(12)}
    error = refused(run, lambda a, b: a.submit_student(1, many))
    assert (type(error), error.reason) == (errors.InvalidUploadError, "WRONG_NAMES")


@pytest.mark.scenario(22)
def test_a_message_above_the_limit_is_refused_and_the_server_goes_on(run: TinyRun) -> None:
    """Scenario 22."""

    def conversation(transport: GrpcTransport) -> str:
        a = site_over(transport, "a")
        with pytest.raises(errors.TooLargeError):
            a.call("Heartbeat", activity="x" * (MAX_MESSAGE_BYTES + 1))
        return str(a.poll().wait.reason)

    assert talk(run, conversation) == "1 of 2 clients ready: a"


def test_bytes_that_are_no_message_are_refused(run: TinyRun) -> None:
    def conversation(transport: GrpcTransport) -> None:
        for method in METHODS.values():
            with pytest.raises(errors.InvalidUploadError, match=f"not a {method.name} request"):
                transport.call(method, b"\xff\xff", 5.0)

    talk(run, conversation)


@pytest.mark.scenario(26)
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_port_in_use_is_said_so(host: str) -> None:
    """Scenario 26."""
    if host == "::1" and not has_ipv6_loopback():
        pytest.skip("this machine has no IPv6 loopback")

    async def two_servers() -> None:
        first, second = GrpcServer(), GrpcServer()
        port = first.listen(host, 0)
        assert port > 0
        with pytest.raises(errors.PortInUseError, match=f":{port}"):
            second.listen(host, port)
        await first.stop(0.0)
        await second.stop(0.0)

    asyncio.run(two_servers())


def test_nobody_there_is_unreachable() -> None:
    transport = GrpcTransport("127.0.0.1:1")
    try:
        with pytest.raises(errors.UnreachableError):
            transport.call(METHODS["Register"], b"", 1.0)
    finally:
        transport.close()


def test_large_uploads_fit_through_in_chunks(run: TinyRun) -> None:
    def conversation(transport: GrpcTransport) -> None:
        a, b = site_over(transport, "a"), site_over(transport, "b")
        a.poll()
        b.poll()
        blob = encode(filled(run.method, 1.0))
        assert a.send(blob, a.key(1, STUDENT)).size == inline(blob).size

    talk(run, conversation)


def test_a_client_that_comes_too_early_learns_how_far_the_preparation_is(run: TinyRun) -> None:
    """The server listens while the run is being prepared, and serves it from then on over the same connection."""

    async def conversation() -> None:
        server = GrpcServer()
        port = server.listen("127.0.0.1", 0)
        activities = iter(["", "pretraining the extractor, 42 %"])
        await server.start_preparing(lambda: next(activities))
        transport = GrpcTransport(f"127.0.0.1:{port}")
        try:
            for said in ("preparing the run$", r"preparing the run \(pretraining the extractor, 42 %\)$"):
                with pytest.raises(errors.UnreachableError, match=said) as early:
                    await asyncio.to_thread(site_over, transport, "a")
                assert early.value.reason == PREPARING
            await server.start(run.service, run.admin)
            assert (await asyncio.to_thread(site_over, transport, "a")).told.run_id == "run-1"
        finally:
            transport.close()
            await server.stop(0.0)

    asyncio.run(conversation())
