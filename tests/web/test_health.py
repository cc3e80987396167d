"""The services that tools expect of any gRPC server: who may ask, what they are told, what they may hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from fkd_client.tls import ClientTls
from fkd_common.access.certificates import CLIENT_FILES, Credentials
from fkd_common.access.roles import Role
from fkd_server.access.tls import ServerTls
from fkd_server.disk_trouble import DISK_FORGIVEN_S
from fkd_server.grpc_server import GrpcServer
from fkd_server.grpc_standard import COORDINATOR, MAX_WATCHES, WATCHES_PER_CALLER
from tests.security.conftest import Pki
from tests.server.tiny import TinyRun, filled

PATIENCE_S = 20.0
SERVING, NOT_SERVING, UNKNOWN = (
    health_pb2.HealthCheckResponse.ServingStatus.Value(name)
    for name in ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
)


@dataclass
class Preparing:
    """A coordinator that listens and has no run yet."""

    server: GrpcServer
    address: str
    loop: asyncio.AbstractEventLoop
    answered: list[tuple[str, str, str]]

    def begin(self, run: TinyRun) -> None:
        """Now it has."""
        asyncio.run_coroutine_threadsafe(self.server.start(run.service, run.admin), self.loop).result(
            PATIENCE_S
        )

    def drain(self) -> None:
        self.loop.call_soon_threadsafe(self.server.health.drain)


@contextmanager
def preparing(tls: ServerTls | None = None) -> Iterator[Preparing]:
    begun, stop = threading.Event(), threading.Event()
    found: list[Preparing] = []

    async def live() -> None:
        calls: list[tuple[str, str, str]] = []
        server = GrpcServer(answered=lambda name, code, reason, seconds: calls.append((name, code, reason)))
        port = server.listen("127.0.0.1", 0, tls)
        await server.start_preparing(lambda: "anchors 40 %")
        found.append(Preparing(server, f"127.0.0.1:{port}", asyncio.get_running_loop(), calls))
        begun.set()
        await asyncio.to_thread(stop.wait)
        await server.stop(2.0)

    thread = threading.Thread(target=lambda: asyncio.run(live()), name="server")
    thread.start()
    try:
        assert begun.wait(PATIENCE_S)
        yield found[0]
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@contextmanager
def probe(address: str, tls: ClientTls | None = None) -> Iterator[health_pb2_grpc.HealthStub]:
    channel = (
        grpc.insecure_channel(address)
        if tls is None
        else grpc.secure_channel(address, tls.channel_credentials())
    )
    with channel:
        yield health_pb2_grpc.HealthStub(channel)


def check(stub: health_pb2_grpc.HealthStub, service: str) -> int:
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10.0).status)


def test_the_process_is_healthy_at_once_and_the_run_when_it_is_served(run: TinyRun) -> None:
    with preparing() as coordinator, probe(coordinator.address) as stub:
        assert (check(stub, ""), check(stub, COORDINATOR)) == (SERVING, NOT_SERVING)
        assert coordinator.server.unready() == "preparing: anchors 40 %"
        coordinator.begin(run)
        assert (check(stub, ""), check(stub, COORDINATOR)) == (SERVING, SERVING)
        assert coordinator.server.unready() == ""
        coordinator.drain()
        assert (check(stub, ""), check(stub, COORDINATOR)) == (NOT_SERVING, NOT_SERVING)
        assert coordinator.server.unready() == "stopping"


def test_a_run_whose_disk_refuses_is_not_ready_until_it_has_not_for_a_while(run: TinyRun) -> None:
    with preparing() as coordinator:
        coordinator.begin(run)
        sites = [run.site("a"), run.site("b")]
        for each in sites:
            each.poll()
        sites[0].submit_student(1, filled(run.method, 1.0))
        (path,) = run.uploads.iterdir()
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + b"\xff")
        sites[1].submit_student(1, filled(run.method, 2.0))
        assert (
            coordinator.server.unready() == "the disk does not take or give data"
        )  # anyone may ask: no paths
        path.write_bytes(whole)
        run.clock.now += DISK_FORGIVEN_S
        run.service.tick()
        assert coordinator.server.unready() == ""


def test_a_service_that_there_is_not_is_unknown(run: TinyRun) -> None:
    with preparing() as coordinator, probe(coordinator.address) as stub:
        with pytest.raises(grpc.RpcError) as error:
            check(stub, "fkd.v1.Nothing")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="fkd.v1.Nothing"))
        assert next(watch).status == UNKNOWN
        watch.cancel()


def test_a_watch_is_told_every_change_and_ends_with_the_server(run: TinyRun) -> None:
    with probe_of_a_run(run) as (coordinator, stub):
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=COORDINATOR))
        assert next(watch).status == NOT_SERVING
        coordinator.begin(run)
        assert next(watch).status == SERVING
        coordinator.drain()
        assert next(watch).status == NOT_SERVING
    assert list(watch) == []


@contextmanager
def probe_of_a_run(run: TinyRun) -> Iterator[tuple[Preparing, health_pb2_grpc.HealthStub]]:
    """The channel outlives the server."""
    with preparing() as coordinator:
        channel = grpc.insecure_channel(coordinator.address)
        yield coordinator, health_pb2_grpc.HealthStub(channel)


def test_watches_are_bounded_and_come_free_when_their_peers_go(run: TinyRun) -> None:
    with preparing() as coordinator:
        channels = [
            grpc.insecure_channel(coordinator.address, [("grpc.use_local_subchannel_pool", 1)])
            for _ in range(MAX_WATCHES // 8)
        ]
        watches = [
            health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            for channel in channels
            for _ in range(8)
        ]
        for watch in watches:
            assert next(watch).status == SERVING
        with probe(coordinator.address) as stub:
            with pytest.raises(grpc.RpcError) as error:
                next(stub.Watch(health_pb2.HealthCheckRequest()))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert check(stub, "") == SERVING  # a check is not a watch
            for channel in channels:
                channel.close()
            watch_when_there_is_room(stub)


def test_one_certificate_holds_a_few_watches_however_many_connections_it_opens(
    run: TinyRun, pki: Pki
) -> None:
    many = [("grpc.use_local_subchannel_pool", 1)]
    site, other = pki.client("site-a"), pki.client("site-b")
    with preparing(ServerTls(pki.folder)) as coordinator:
        channels = [
            grpc.secure_channel(coordinator.address, site.channel_credentials(), many) for _ in range(2)
        ]
        watches = []  # one after another: requests that come at once have a limit of their own
        for number in range(WATCHES_PER_CALLER):
            stub = health_pb2_grpc.HealthStub(channels[number % 2])
            watches.append(stub.Watch(health_pb2.HealthCheckRequest()))
            assert next(watches[-1]).status == SERVING
        with probe(coordinator.address, site) as stub:
            with pytest.raises(grpc.RpcError) as error:
                next(stub.Watch(health_pb2.HealthCheckRequest()))
            assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with probe(coordinator.address, other) as stub:
            assert next(stub.Watch(health_pb2.HealthCheckRequest())).status == SERVING
        for channel in channels:
            channel.close()


def watch_when_there_is_room(stub: health_pb2_grpc.HealthStub) -> None:
    """Each refusal takes a second of itself."""
    for _ in range(10):
        try:
            assert next(stub.Watch(health_pb2.HealthCheckRequest())).status == SERVING
            return
        except grpc.RpcError:
            continue
    raise AssertionError("no watch came free")


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"\xff" * 10, grpc.StatusCode.INVALID_ARGUMENT),
        (b"\x0a\x80\x80\x04" + b"x" * 65_536, grpc.StatusCode.RESOURCE_EXHAUSTED),
        (b"x" * (2 << 20), grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
@pytest.mark.parametrize("name", ["Check", "Watch"])
def test_requests_that_are_none_are_refused(name: str, request_bytes: bytes, code: grpc.StatusCode) -> None:
    with preparing() as coordinator, grpc.insecure_channel(coordinator.address) as channel:
        call = channel.unary_stream(f"/grpc.health.v1.Health/{name}")
        with pytest.raises(grpc.RpcError) as error:
            list(call(request_bytes, timeout=10.0))
        assert error.value.code() is code
        assert coordinator.server.health.check(b"")  # and it goes on


def test_over_tls_a_probe_is_whoever_may_connect(run: TinyRun, pki: Pki) -> None:
    with (
        preparing(ServerTls(pki.folder)) as coordinator,
        probe(coordinator.address, pki.client("site-a")) as stub,
    ):
        coordinator.begin(run)
        assert check(stub, COORDINATOR) == SERVING


def credentials(folder: Path) -> grpc.ChannelCredentials:
    """Of whoever has the certificate in a folder."""
    own = Credentials.read(folder, CLIENT_FILES)
    return grpc.ssl_channel_credentials(own.ca, own.key, own.chain)


def services(address: str, own: grpc.ChannelCredentials) -> list[str]:
    with grpc.secure_channel(address, own) as channel:
        return list(ProtoReflectionDescriptorDatabase(channel).get_services())


def test_operators_tools_find_out_which_calls_there_are(run: TinyRun, pki: Pki) -> None:
    operator = credentials(pki.holder("alice", Role.OPERATOR))
    with preparing(ServerTls(pki.folder)) as coordinator:
        coordinator.begin(run)
        found = services(coordinator.address, operator)
        assert {"fkd.v1.Coordinator", "fkd.v1.Admin", "grpc.health.v1.Health"} <= set(found)
        with grpc.secure_channel(coordinator.address, operator) as channel:
            file = ProtoReflectionDescriptorDatabase(channel).FindFileContainingSymbol("fkd.v1.Admin")
        assert "Pause" in [method.name for method in file.service[0].method]


def test_sites_do_not(run: TinyRun, pki: Pki) -> None:
    with preparing(ServerTls(pki.folder)) as coordinator:
        coordinator.begin(run)
        with pytest.raises(grpc.RpcError) as error:
            services(coordinator.address, credentials(pki.holder("site-a")))
    assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_every_call_is_counted_with_how_it_ended(run: TinyRun) -> None:
    with preparing() as coordinator, probe(coordinator.address) as stub:
        check(stub, "")
        with pytest.raises(grpc.RpcError):
            check(stub, "x")
        with grpc.insecure_channel(coordinator.address) as channel, pytest.raises(grpc.RpcError):
            channel.unary_unary("/fkd.v1.Coordinator/Register")(b"", timeout=10.0)
    assert coordinator.answered == [
        ("Check", "OK", ""),
        ("Check", "NOT_FOUND", "NO_SERVICE"),
        ("Register", "UNAVAILABLE", "PREPARING"),
    ]
