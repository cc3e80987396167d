"""The overlay with a relay: it finds the coordinator above it, its sites find it, and it is whom that one lets in."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from fkd_common.access.certificates import holder_of
from fkd_common.access.roles import Role
from fkd_common.addresses import split_address
from fkd_relay.refusals import check_flags, check_not_itself
from tests.kubernetes.authority import Authority
from tests.kubernetes.manifests import named, of_kind
from tests.kubernetes.network_rules import End, allowed
from tests.kubernetes.test_network import DNS, GRPC, HTTP, JOIN, OUTSIDE, PROMETHEUS, STRANGER
from tests.kubernetes.test_settings import (
    client_settings,
    hub_of,
    mount_of,
    server_settings,
    sites_of,
    writable,
)

TARGET, RELAY = "overlays/relay", "fkd-relay-north"
BELOW = {"fkd-site-a", "fkd-site-b"}


def test_the_relay_takes_its_configuration(tmp_path: Path) -> None:
    settings = server_settings(TARGET, tmp_path, RELAY)
    check_flags(settings)
    check_not_itself(settings)
    assert settings.run_id and settings.serve and settings.listen_host() == "0.0.0.0"
    assert settings.min_clients == len(BELOW) >= settings.min_cohort


def test_the_relay_calls_the_service_of_the_coordinator_as_one_of_its_relays(tmp_path: Path) -> None:
    below, above = server_settings(TARGET, tmp_path, RELAY), server_settings(TARGET, tmp_path)
    objects, pod, container = hub_of(TARGET, RELAY)
    assert below.upstream is not None
    host, port = split_address(below.upstream)
    service = named(objects, "Service", host)
    assert port == above.port
    assert port in {one["port"] for one in service["spec"]["ports"]}
    assert service["spec"]["selector"].items() <= hub_of(TARGET)[1].labels.items()
    assert not service["spec"]["selector"].items() <= pod.labels.items()

    mount = mount_of(container, str(below.upstream_tls))
    assert mount is not None and mount["readOnly"]
    secret = pod.volume(mount["name"])["secret"]["secretName"]
    (found,) = [one for one in of_kind(objects, "Certificate") if one["spec"]["secretName"] == secret]
    holder = holder_of(x509.load_pem_x509_certificate(Authority().secret_for(found)["tls.crt"]))
    assert (holder.role, (holder.name,)) == (Role.CLIENT, above.relays)


def test_its_sites_call_the_relays_service_and_the_others_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: dict[str, set[str]] = {}
    for objects, pod, container in sites_of(TARGET):
        host, port = split_address(client_settings(objects, container, monkeypatch).server)
        assert port in {one["port"] for one in named(objects, "Service", host)["spec"]["ports"]}
        called.setdefault(host, set()).add(pod.owner)
    assert called == {RELAY: BELOW, "fkd-coordinator": {"fkd-site-c"}}
    objects, relay, _ = hub_of(TARGET, RELAY)
    assert named(objects, "Service", RELAY)["spec"]["selector"].items() <= relay.labels.items()
    # The relay is one client there.
    assert server_settings(TARGET, tmp_path).run_config().min_clients == 1 + len(called["fkd-coordinator"])


def test_the_relay_finds_what_it_reads_and_may_write_what_it_writes(tmp_path: Path) -> None:
    settings, (objects, pod, container) = server_settings(TARGET, tmp_path, RELAY), hub_of(TARGET, RELAY)
    assert writable(container, str(settings.runs))
    assert not any("anchors" in str(one) or one["name"] == "prepare" for one in pod.containers)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": settings.port, "http": settings.http_port}
    mount = mount_of(container, str(settings.tls))
    assert mount is not None and mount["readOnly"]
    secret = pod.volume(mount["name"])["secret"]["secretName"]
    (found,) = [one for one in of_kind(objects, "Certificate") if one["spec"]["secretName"] == secret]
    assert found["spec"]["dnsNames"] == [
        f"{RELAY}{rest}" for rest in ("", ".fkd", ".fkd.svc", ".fkd.svc.cluster.local")
    ]


def test_who_may_talk_to_the_relay_and_to_whom_it_may_talk() -> None:
    objects, relay, _ = hub_of(TARGET, RELAY)
    policies = of_kind(objects, "NetworkPolicy")
    above, at = End("fkd", hub_of(TARGET)[1].labels), End("fkd", relay.labels)

    def passes(source: End, target: End, port: int, protocol: str = "TCP") -> bool:
        return allowed(policies, source, target, port, protocol)

    for _, pod, _ in sites_of(TARGET):
        site, below = End("fkd", pod.labels), pod.owner in BELOW
        assert [passes(site, at, port) for port in (GRPC, JOIN, HTTP)] == [below, False, False]
        assert passes(site, above, GRPC) is not below
        assert not passes(at, site, GRPC)
    assert [passes(at, above, port) for port in (GRPC, JOIN, HTTP)] == [True, False, False]
    assert passes(at, DNS, 53, "UDP") and passes(PROMETHEUS, at, HTTP)
    assert not passes(above, at, GRPC) and not passes(at, OUTSIDE, GRPC)
    assert not any(passes(stranger, at, port) for stranger in (STRANGER, OUTSIDE) for port in (GRPC, HTTP))
