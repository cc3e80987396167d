"""Where two files must say the same: selectors and labels, certificates and identities, images and their builds."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from fkd_common.access.certificates import holder_of
from fkd_common.access.roles import Role
from fkd_common.addresses import split_address
from fkd_server.cli import main as server_main
from tests.kubernetes.alerts import ALERTS
from tests.kubernetes.authority import Authority
from tests.kubernetes.manifests import (
    FOLDER,
    OVERLAYS,
    ROOT,
    TARGETS,
    named,
    of_kind,
    pods_of,
    render,
    variables_of,
)

README = (FOLDER / "README.md").read_text()


def test_the_service_monitor_finds_one_service_and_the_token() -> None:
    objects = render("base", "service-monitor")
    spec = named(objects, "ServiceMonitor", "fkd-coordinator")["spec"]
    (endpoint,) = spec["endpoints"]
    found = [
        service["metadata"]["name"]
        for service in of_kind(objects, "Service")
        if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        and endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    ]
    assert found == ["fkd-coordinator"]
    (pod,) = pods_of(objects)
    assert endpoint["authorization"]["credentials"] == {
        "name": pod.volume("http")["secret"]["secretName"],
        "key": "token",
    }
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == pod.volume("tls")["secret"]["secretName"]


def test_the_name_that_prometheus_checks_is_in_the_certificate() -> None:
    objects = render("overlays/mtls", "service-monitor")
    (endpoint,) = named(objects, "ServiceMonitor", "fkd-coordinator")["spec"]["endpoints"]
    assert (
        endpoint["tlsConfig"]["serverName"]
        in named(objects, "Certificate", "fkd-coordinator")["spec"]["dnsNames"]
    )


@pytest.mark.parametrize("component", ["disruption-budget", "external"])
def test_a_component_selects_the_coordinator(component: str) -> None:
    objects = render("base", component)
    (pod,) = pods_of(objects)
    added = [found for found in objects if found not in render("base")]
    assert added
    for found in added:
        spec = found["spec"]
        selector = spec.get("podSelector") or spec["selector"]
        assert selector.get("matchLabels", selector).items() <= pod.labels.items()


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    (rule,) = of_kind(render("base", "prometheus-rule"), "PrometheusRule")
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    assert rule["spec"]["groups"] == groups, "run: python -m tests.kubernetes.alerts"


def test_certificates_name_whom_the_coordinator_takes_them_for() -> None:
    objects = render("overlays/mtls")
    authority = Authority()
    holders = {}
    for found in of_kind(objects, "Certificate"):
        if found["spec"].get("uris"):
            pem = authority.secret_for(found)["tls.crt"]
            holder = holder_of(x509.load_pem_x509_certificate(pem))
            holders[found["spec"]["secretName"]] = (holder.role, holder.name)
    assert holders == {
        "fkd-operator-tls": (Role.OPERATOR, "operator"),
        "fkd-site-a-tls": (Role.CLIENT, "site-a"),
        "fkd-site-b-tls": (Role.CLIENT, "site-b"),
        "fkd-site-c-tls": (Role.CLIENT, "site-c"),
    }


def test_every_site_has_the_certificate_of_its_name() -> None:
    objects = render("overlays/mtls")
    uris = {one["spec"]["secretName"]: one["spec"].get("uris") for one in of_kind(objects, "Certificate")}
    for pod in pods_of(objects):
        if "app.kubernetes.io/instance" in pod.labels:
            secret = pod.volume("tls")["secret"]["secretName"]
            assert uris[secret] == [f"urn:fkd:client:{pod.labels['app.kubernetes.io/instance']}"]


def test_the_coordinators_certificate_has_every_name_of_its_service() -> None:
    names = named(render("overlays/mtls"), "Certificate", "fkd-coordinator")["spec"]["dnsNames"]
    assert names == [f"fkd-coordinator{rest}" for rest in ("", ".fkd", ".fkd.svc", ".fkd.svc.cluster.local")]


def test_the_certificate_of_the_readme_has_every_name_that_anybody_calls_the_coordinator_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (command,) = re.findall(r"^fkd-server (certs init (?:.*\\\n)*.*)", README, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    assert server_main(shlex.split(command.replace("\\\n", " "))) == 0
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls/server.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    called = set(named(render("overlays/mtls"), "Certificate", "fkd-coordinator")["spec"]["dnsNames"])
    (endpoint,) = named(render("base", "service-monitor"), "ServiceMonitor", "fkd-coordinator")["spec"][
        "endpoints"
    ]
    called.add(endpoint["tlsConfig"]["serverName"])
    for target in ("site", "overlays/remote-site"):
        objects = render(target)
        for pod in pods_of(objects):
            server = variables_of(pod.container("client"), objects)["FKD_SERVER"]
            called.add(split_address(server)[0])
    assert called <= set(names.get_values_for_type(x509.DNSName))
    assert "hub.example.org" in called


def test_issuers_lead_to_the_authority() -> None:
    objects = render("overlays/mtls")
    assert (
        named(objects, "Issuer", "fkd")["spec"]["ca"]["secretName"]
        == (named(objects, "Certificate", "fkd-authority")["spec"]["secretName"])
    )
    for found in of_kind(objects, "Certificate"):
        named(objects, "Issuer", found["spec"]["issuerRef"]["name"])


def test_every_image_is_one_that_a_dockerfile_says_how_to_build() -> None:
    used = {
        container["image"]
        for target in TARGETS
        for pod in pods_of(render(target))
        for container in pod.containers
    }
    built, commands = set(), set()
    for file in (ROOT / "deploy" / "docker").glob("*.Dockerfile"):
        for command in re.findall(r"docker build .*", file.read_text()):
            commands.add(command)
            words = shlex.split(command)
            assert words[words.index("-f") + 1] == str(file.relative_to(ROOT))
            built.add(words[words.index("-t") + 1])
    assert used == built
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {re.split("[:-]", image)[2] for image in used} == {version}
    assert all(image in README for image in used)
    told = (ROOT / "deploy" / "docker" / "README.md").read_text()
    assert commands == set(re.findall(r"docker build [^`]*", told))


@pytest.mark.parametrize("document", ["docker/README.md", "kubernetes/README.md"])
def test_what_a_readme_names_is_there(document: str) -> None:
    path = ROOT / "deploy" / document
    links = [path.parent / link for link in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text())]
    files = [ROOT / name for name in re.findall(r"(?<![\w/])(?:deploy|tests)/[\w/.-]*\w", path.read_text())]
    assert [str(one) for one in (*links, *files) if not one.exists()] == []
    assert len(files) > 3


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_readme_tells_what_an_overlay_is_for(overlay: str) -> None:
    assert f"`overlays/{overlay}`" in README


def test_only_sites_get_gpus_and_tolerate_their_nodes() -> None:
    pods = pods_of(render("overlays/gpu-clients"))
    with_gpu = {
        pod.owner for pod in pods for one in pod.containers if "nvidia.com/gpu" in one["resources"]["limits"]
    }
    assert with_gpu == {"fkd-site-a", "fkd-site-b", "fkd-site-c"}
    for pod in pods:
        assert (pod.spec.get("runtimeClassName") == "nvidia") is (pod.owner in with_gpu)
        assert bool(pod.spec.get("tolerations")) is (pod.owner in with_gpu)
