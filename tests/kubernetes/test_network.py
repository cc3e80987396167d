"""Who may talk to whom under the policies: sites to the coordinator, Prometheus to its metrics, nobody else."""

from __future__ import annotations

import pytest

from tests.kubernetes.manifests import OVERLAYS, of_kind, pods_of, render
from tests.kubernetes.network_rules import End, allowed

GRPC, JOIN, HTTP = 50051, 50052, 50053
DNS = End("kube-system", {"k8s-app": "kube-dns"})
PROMETHEUS = End("monitoring", {"app.kubernetes.io/name": "prometheus"})
STRANGER = End("fkd", {"app": "stranger"})
NEIGHBOUR = End("other", {"app.kubernetes.io/name": "fkd", "app.kubernetes.io/component": "site"})
OUTSIDE = End(address="203.0.113.7")
TOGETHER = ("local", "mtls", "gpu-clients")
"""Overlays with the coordinator and its sites in one cluster."""


def end_of(overlay: str, component: str) -> list[End]:
    found = pods_of(render(f"overlays/{overlay}"))
    return [
        End(pod.namespace, pod.labels)
        for pod in found
        if pod.labels["app.kubernetes.io/component"] == component
    ]


def passes(overlay: str, source: End, target: End, port: int, protocol: str = "TCP") -> bool:
    return allowed(of_kind(render(f"overlays/{overlay}"), "NetworkPolicy"), source, target, port, protocol)


@pytest.mark.parametrize("overlay", TOGETHER)
def test_every_site_reaches_the_coordinator_and_only_its_grpc_port(overlay: str) -> None:
    (coordinator,), sites = end_of(overlay, "coordinator"), end_of(overlay, "site")
    assert len(sites) == 3
    for site in sites:
        assert [passes(overlay, site, coordinator, port) for port in (GRPC, JOIN, HTTP)] == [
            True,
            False,
            False,
        ]


@pytest.mark.parametrize("overlay", TOGETHER)
def test_prometheus_reaches_the_metrics_and_nothing_else(overlay: str) -> None:
    (coordinator,) = end_of(overlay, "coordinator")
    assert [passes(overlay, PROMETHEUS, coordinator, port) for port in (GRPC, HTTP)] == [False, True]


@pytest.mark.parametrize("overlay", TOGETHER)
@pytest.mark.parametrize("stranger", [STRANGER, NEIGHBOUR, OUTSIDE], ids=["stranger", "neighbour", "outside"])
def test_strangers_reach_nothing(overlay: str, stranger: End) -> None:
    for target in (*end_of(overlay, "coordinator"), *end_of(overlay, "site")):
        assert not any(passes(overlay, stranger, target, port) for port in (GRPC, JOIN, HTTP))


@pytest.mark.parametrize("overlay", TOGETHER)
def test_sites_reach_names_and_neither_each_other_nor_the_world(overlay: str) -> None:
    one, other, _ = end_of(overlay, "site")
    assert passes(overlay, one, DNS, 53, "UDP") and passes(overlay, one, DNS, 53)
    assert not any(passes(overlay, one, other, port) for port in (GRPC, HTTP))
    assert not any(passes(overlay, one, OUTSIDE, port) for port in (GRPC, 80, 443))


@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name != "remote-site"])
def test_the_coordinator_calls_nobody(overlay: str) -> None:
    (coordinator,) = end_of(overlay, "coordinator")
    others = (OUTSIDE, PROMETHEUS, DNS, *end_of(overlay, "site"))
    assert not any(passes(overlay, coordinator, other, port) for other in others for port in (53, 443, GRPC))


def test_the_outside_reaches_the_grpc_port_where_it_is_meant_to() -> None:
    (coordinator,) = end_of("external", "coordinator")
    assert [passes("external", OUTSIDE, coordinator, port) for port in (GRPC, JOIN, HTTP)] == [
        True,
        False,
        False,
    ]


def test_a_remote_site_calls_the_coordinator_and_names_only() -> None:
    (site,) = end_of("remote-site", "site")
    assert [passes("remote-site", site, OUTSIDE, port) for port in (GRPC, 443)] == [True, False]
    assert passes("remote-site", site, DNS, 53, "UDP")
    assert not passes("remote-site", STRANGER, site, GRPC)


def test_without_the_policies_everything_passes() -> None:
    (coordinator,) = end_of("mtls", "coordinator")
    assert allowed([], STRANGER, coordinator, HTTP)


def test_demo_data_is_made_without_a_network() -> None:
    objects = render("demo-data")
    (pod,) = pods_of(objects)
    assert not allowed(of_kind(objects, "NetworkPolicy"), End(pod.namespace, pod.labels), OUTSIDE, 443)
