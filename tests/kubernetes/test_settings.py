"""What the manifests tell the programs, read by the programs' own loaders, and whether it is there to be found."""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

import pytest

from fkd_client.settings import ClientSettings
from fkd_common.addresses import split_address
from fkd_common.errors import ExitCode, UsageError
from fkd_common.settings import load_settings
from fkd_server.serve import STOP_GRACE_S
from fkd_server.settings import ServerSettings
from tests.kubernetes.manifests import (
    FOLDER,
    TARGETS,
    Object,
    Pod,
    named,
    of_kind,
    pods_of,
    render,
    variables_of,
)

HUBS = ("base", "overlays/external", "overlays/gpu-clients", "overlays/local", "overlays/mtls")
SITES = ("site", "overlays/gpu-clients", "overlays/local", "overlays/mtls", "overlays/remote-site")
MADE_BY_HAND = {
    "Secret": {"fkd-tls", "fkd-http", "fkd-site-tls"},
    "PersistentVolumeClaim": {
        "fkd-public", "fkd-images", "fkd-site-a-images", "fkd-site-b-images", "fkd-site-c-images",
    },
}  # fmt: skip


def hub_of(target: str, owner: str = "fkd-coordinator") -> tuple[list[Object], Pod, Object]:
    objects = render(target)
    (pod,) = [pod for pod in pods_of(objects) if pod.owner == owner]
    return objects, pod, pod.container("coordinator")


def sites_of(target: str) -> list[tuple[list[Object], Pod, Object]]:
    objects = render(target)
    pods = [pod for pod in pods_of(objects) if pod.labels["app.kubernetes.io/component"] == "site"]
    assert pods
    return [(objects, pod, pod.container("client")) for pod in pods]


def mount_of(container: Object, path: str) -> Object | None:
    """The mount that a path lies on."""
    mounts = [
        mount for mount in container["volumeMounts"] if PurePosixPath(path).is_relative_to(mount["mountPath"])
    ]
    return max(mounts, key=lambda mount: len(mount["mountPath"]), default=None)


def writable(container: Object, path: str) -> bool:
    mount = mount_of(container, path)
    return mount is not None and not mount.get("readOnly")


def server_settings(target: str, folder: Path, owner: str = "fkd-coordinator") -> ServerSettings:
    """The coordinator's settings as its container would read them."""
    objects, pod, container = hub_of(target, owner)
    arguments = []
    for word in container["args"]:
        if word.startswith("/"):
            mount = mount_of(container, word)
            assert mount is not None, word
            data = named(objects, "ConfigMap", pod.volume(mount["name"])["configMap"]["name"])["data"]
            file = folder / PurePosixPath(word).name
            file.write_text(data[str(PurePosixPath(word).relative_to(mount["mountPath"]))])
            word = str(file)
        arguments.append(word)
    assert variables_of(container, objects) == {}
    return load_settings(ServerSettings, "fkd-server", arguments, use_environment=False)


def client_settings(
    objects: list[Object], container: Object, monkeypatch: pytest.MonkeyPatch
) -> ClientSettings:
    """A client's settings as its container would read them, from its environment alone."""
    given = {
        name: value for name, value in variables_of(container, objects).items() if name.startswith("FKD_")
    }
    known = {f"FKD_{name}".upper() for name in ClientSettings.model_fields}
    assert set(given) <= known, f"no settings: {set(given) - known}"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return load_settings(ClientSettings, "fkd-client", [])


@pytest.mark.parametrize("target", HUBS)
def test_the_coordinator_takes_its_configuration(target: str, tmp_path: Path) -> None:
    settings = server_settings(target, tmp_path)
    assert settings.run_id and settings.serve and settings.listen_host() == "0.0.0.0"
    assert settings.http_host == "0.0.0.0" and settings.http_token is not None
    assert settings.run_config().min_clients == 3


def test_a_configuration_with_an_unknown_key_would_be_noticed(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text((FOLDER / "base" / "run.yaml").read_text() + "min_client: 3\n")
    with pytest.raises(UsageError, match="min_client"):
        load_settings(ServerSettings, "fkd-server", ["--config", str(file)], use_environment=False)


@pytest.mark.parametrize("target", HUBS)
def test_plain_text_is_said_in_so_many_words_or_not_there(target: str, tmp_path: Path) -> None:
    settings = server_settings(target, tmp_path)
    assert (settings.tls is None) is settings.insecure is (target == "overlays/local")


@pytest.mark.parametrize("target", HUBS)
def test_ports_are_those_that_the_coordinator_listens_on(target: str, tmp_path: Path) -> None:
    settings = server_settings(target, tmp_path)
    objects, _, container = hub_of(target)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": settings.port, "http": settings.http_port}
    for service in of_kind(objects, "Service"):
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"] == ports[port["name"]]


@pytest.mark.parametrize("target", HUBS)
def test_probes_ask_the_http_port_in_the_way_it_speaks(target: str, tmp_path: Path) -> None:
    settings = server_settings(target, tmp_path)
    _, _, container = hub_of(target)
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {probe["port"] for probe in asked.values()} == {"http"}
    assert {probe["scheme"] for probe in asked.values()} == {"HTTPS" if settings.tls else "HTTP"}
    assert [probe["path"] for probe in asked.values()] == ["/livez", "/livez", "/readyz"]


@pytest.mark.parametrize("target", HUBS)
def test_the_coordinator_finds_what_it_reads_and_may_write_what_it_writes(
    target: str, tmp_path: Path
) -> None:
    settings = server_settings(target, tmp_path)
    _, _, container = hub_of(target)
    assert writable(container, str(settings.runs)) and writable(container, str(settings.prepared))
    assert settings.http_token is not None
    read = [
        settings.http_token.get_secret_value().removeprefix("@"),
        *([settings.tls] if settings.tls else []),
    ]
    for path in read:
        mount = mount_of(container, str(path))
        assert mount is not None and mount["readOnly"]


@pytest.mark.parametrize("target", HUBS)
def test_the_coordinator_is_given_time_to_stop(target: str) -> None:
    _, pod, _ = hub_of(target)
    # Clients learn that it is going, and calls end: STOP_GRACE_S each.
    assert pod.spec["terminationGracePeriodSeconds"] > 2 * STOP_GRACE_S + 10


@pytest.mark.parametrize("target", SITES)
def test_a_client_takes_its_settings(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for objects, _, container in sites_of(target):
        settings = client_settings(objects, container, monkeypatch)
        assert (settings.tls is None) is settings.insecure is (target == "overlays/local")
        assert (settings.name is None) is (settings.tls is not None), (
            "with TLS the certificate says who it is"
        )


@pytest.mark.parametrize("target", [target for target in SITES if target in HUBS])
def test_a_client_calls_the_service_of_the_coordinator(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for objects, _, container in sites_of(target):
        host, port = split_address(client_settings(objects, container, monkeypatch).server)
        service = named(objects, "Service", host)
        assert port in {one["port"] for one in service["spec"]["ports"]}
        assert service["spec"]["selector"].items() <= hub_of(target)[1].labels.items()


@pytest.mark.parametrize("target", SITES)
def test_a_client_reads_images_that_it_cannot_change(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for objects, pod, container in sites_of(target):
        settings = client_settings(objects, container, monkeypatch)
        mount = mount_of(container, settings.data)
        assert mount is not None and mount["readOnly"]
        assert pod.volume(mount["name"])["persistentVolumeClaim"]["readOnly"]
        assert writable(container, str(settings.runs))


@pytest.mark.parametrize("target", SITES)
def test_a_client_uses_as_many_threads_as_it_asks_for(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for objects, _, container in sites_of(target):
        asked = container["resources"]["requests"]["cpu"]
        cpus = int(asked[:-1]) / 1000 if asked.endswith("m") else float(asked)
        assert client_settings(objects, container, monkeypatch).threads == math.ceil(cpus)


@pytest.mark.parametrize("target", SITES)
def test_a_job_fails_where_another_attempt_cannot_help(target: str) -> None:
    for job in of_kind(render(target), "Job"):
        rules = job["spec"]["podFailurePolicy"]["rules"]
        final = [rule for rule in rules if rule["action"] == "FailJob"]
        assert [rule["onExitCodes"]["values"] for rule in final] == [
            [ExitCode.USAGE, ExitCode.DATA, ExitCode.REJECTED, ExitCode.ABORTED]
        ]
        moved = [{"type": "DisruptionTarget", "status": "True"}]
        assert rules[0] == {"action": "Ignore", "onPodConditions": moved}
        containers = {one["name"] for one in job["spec"]["template"]["spec"]["containers"]}
        assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == containers


@pytest.mark.parametrize("target", TARGETS)
def test_everything_a_pod_refers_to_is_there_or_made_as_the_readme_says(target: str) -> None:
    objects = render(target)
    readme = (FOLDER / "README.md").read_text()
    there = {(found["kind"], found["metadata"]["name"]) for found in objects}
    there |= {("Secret", found["spec"]["secretName"]) for found in of_kind(objects, "Certificate")}
    for pod in pods_of(objects):
        for kind, name in _references(pod):
            if (kind, name) not in there:
                assert name in MADE_BY_HAND.get(kind, set()), f"{kind} {name} of {pod.owner} is nowhere"
                assert f"`{name}`" in readme


def _references(pod: Pod) -> list[tuple[str, str]]:
    found = [("ServiceAccount", pod.spec["serviceAccountName"])] if "serviceAccountName" in pod.spec else []
    for volume in pod.spec["volumes"]:
        found += [("ConfigMap", volume["configMap"]["name"])] if "configMap" in volume else []
        found += [("Secret", volume["secret"]["secretName"])] if "secret" in volume else []
        claim = volume.get("persistentVolumeClaim")
        found += [("PersistentVolumeClaim", claim["claimName"])] if claim else []
    for container in pod.containers:
        found += [("ConfigMap", one["configMapRef"]["name"]) for one in container.get("envFrom", [])]
        known = {volume["name"] for volume in pod.spec["volumes"]} | set(pod.claims)
        assert {mount["name"] for mount in container["volumeMounts"]} <= known
    return found
